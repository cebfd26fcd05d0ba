#include "kernels/cuda/attend/attend.cuh"
#include "kernels/cuda/hopper.cuh"

// Attention of many queries on Hopper, head dimensions 64 and 128. One warp of the first warpgroup brings pages by TMA
// into a ring of key and value tiles; each other warpgroup owns 64 pairs. FlashAttention-3's overlap: the products of
// the next keys are in flight with those of the last values, and under both runs the softmax. Taking turns among
// warpgroups, pairs of blocks that share their keys and skipped rescaling were tried and gained nothing.
//
// Key tiles go from the newest to the oldest: the masked ones come first, and the main loop has no masks.

namespace kv::cuda {

namespace {

constexpr int kKeys = 128;  // of a step

template <int D, int kGroups>
struct Shape {
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kStages = D == 64 ? 4 : 2;
  static constexpr int kThreads = kWarpgroup * (kGroups + 1);
  static constexpr int kPanels = D / kPanelColumns;
  static constexpr int kTileBytes = kPanels * kPanelBytes<kKeys>;
  static constexpr int kQueryBytes = kPanels * kPanelBytes<64>;  // of one warpgroup
  static constexpr size_t kSharedBytes = kPanelAlignment + kGroups * kQueryBytes + 2 * kStages * kTileBytes;
};

// What a thread block computes: pairs [first_pair, last_pair] over slots [begin, end).
struct Tile {
  int first_pair;
  int last_pair;
  int begin;
  int end;
  int steps;
};

// The ring's barriers. `full` counts the bytes of a tile, `empty` the warps that have read it.
template <int kStages>
struct Ring {
  Barrier full_keys[kStages], full_values[kStages], empty_keys[kStages], empty_values[kStages];
  uint32_t nowhere;  // compute_now()'s
};

// A page that is only partly in use may hold NaN beyond the row's length, and 0 · NaN would reach the output: its valid
// values are copied by hand, the rest is zero.
template <int D>
__device__ void copy_partial_page(unsigned char* tile, int first_row, const bf16* page, int rows, int lane) {
  for (int piece = lane; piece < kPageTokens * D / 8; piece += 32) {
    const int row = piece / (D / 8), column = piece % (D / 8) * 8;
    const uint4 word = row < rows ? *reinterpret_cast<const uint4*>(page + row * D + column) : uint4{};
    void* panel = tile + column / kPanelColumns * kPanelBytes<kKeys>;
    *static_cast<uint4*>(panel_piece(panel, first_row + row, column % kPanelColumns / 8)) = word;
  }
  publish_to_async();
}

// One warp. Lane l brings page l % 8 of a tile, panel l / 8.
template <int D, int kGroups>
__device__ void load(const PagedView& cache, const AttendBlock& block, const Tile& tile, const CUtensorMap& key_map,
                     const CUtensorMap& value_map, unsigned char* key_tiles, unsigned char* value_tiles,
                     Ring<Shape<D, kGroups>::kStages>& ring) {
  using Shape = Shape<D, kGroups>;
  constexpr int kPages = kKeys / kPageTokens;
  const int lane = threadIdx.x % 32;
  const int length = static_cast<int>(block.base) + block.segment.count;
  const int pages = (length + kPageTokens - 1) / kPageTokens;
  const int32_t* table = cache.page_table + block.row * cache.max_pages;
  const int page_in_tile = lane % kPages, panel = lane / kPages;
  const auto page_of = [&](int step) {
    const int page = tile.begin / kPageTokens + step * kPages + page_in_tile;
    return step >= 0 && page < pages ? table[page] : -1;  // no page: row −16 and up, which TMA fills with zeros
  };
  const bool brings = panel < Shape::kPanels;
  const int place = panel * kPanelBytes<kKeys> + page_in_tile * kPanelBytes<kPageTokens>;
  int32_t page = page_of(tile.steps - 1);
  for (int t = 0; t < tile.steps; ++t) {
    const int step = tile.steps - 1 - t;
    const int32_t next_page = page_of(step - 1);
    const int stage = t % Shape::kStages;
    const uint32_t emptied = (t / Shape::kStages + 1) % 2;  // the first round finds the ring empty
    ring.empty_keys[stage].wait(emptied);
    if (lane == 0) ring.full_keys[stage].arrive_expecting(Shape::kTileBytes);
    __syncwarp();
    if (brings) {
      copy_box(key_tiles + stage * Shape::kTileBytes + place, key_map, panel * kPanelColumns, page * kPageTokens,
               ring.full_keys[stage]);
    }
    ring.empty_values[stage].wait(emptied);
    // The page that holds the row's end, if it is in this tile and not full.
    const int partial = length % kPageTokens == 0 ? -1 : pages - 1 - (tile.begin / kPageTokens + step * kPages);
    const bool has_partial = partial >= 0 && partial < kPages;
    unsigned char* values = value_tiles + stage * Shape::kTileBytes;
    if (has_partial) {
      const int64_t from = int64_t{table[pages - 1]} * kPageTokens * D;
      copy_partial_page<D>(values, partial * kPageTokens, static_cast<const bf16*>(cache.values.data) + from,
                           length % kPageTokens, lane);
      __syncwarp();
    }
    if (lane == 0) {
      const int left_out = has_partial ? kPageTokens * D * static_cast<int>(sizeof(bf16)) : 0;
      ring.full_values[stage].arrive_expecting(Shape::kTileBytes - left_out);
    }
    __syncwarp();
    if (brings && !(has_partial && page_in_tile == partial)) {
      copy_box(values + place, value_map, panel * kPanelColumns, page * kPageTokens, ring.full_values[stage]);
    }
    page = next_page;
  }
}

// The softmax of a thread's two rows so far; `sum` is its own share of the row's sum.
struct Rows {
  float largest[2] = {-kInfinity, -kInfinity};  // raw products
  float sum[2] = {0, 0};
};

// Raw products become probabilities relative to the new maximum; `shrink` is what older sums and outputs lose.
template <bool kMasked>
__device__ __forceinline__ void softmax(float (&x)[kKeys / 2], float scale, Rows& rows, float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float maxima[2] = {rows.largest[half], x[2 * half]};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      maxima[0] = fmaxf(maxima[0], x[4 * n + 2 * half]);
      maxima[1] = fmaxf(maxima[1], x[4 * n + 2 * half + 1]);
    }
    float largest = fmaxf(maxima[0], maxima[1]);
    largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 2));
    // Nothing seen yet: −∞ − −∞ is no number.
    const float from = kMasked && largest == -kInfinity ? 0.0f : largest * scale;
    shrink[half] = exp2_fast(rows.largest[half] * scale - from);
    rows.largest[half] = largest;
    float sum[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& p = x[4 * n + 2 * half + e];
        p = exp2_fast(p * scale - from);
        sum[e] += p;
      }
    }
    rows.sum[half] = rows.sum[half] * shrink[half] + (sum[0] + sum[1]);
  }
}

// 64 pairs against a tile of keys; in flight until it is waited for, as pv() is.
template <int D>
__device__ __forceinline__ void qk(float (&logits)[kKeys / 2], const unsigned char* queries,
                                   const unsigned char* keys) {
  multiply_rows<D, 64, kKeys>(logits, queries, keys);
  product_commit();
}

template <int N>
__device__ __forceinline__ void mask(float (&x)[N], int first, const int (&seen)[2], int lane) {
#pragma unroll
  for (int n = 0; n < N / 4; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (first + n * 8 + lane % 4 * 2 + e % 2 >= seen[e / 2]) x[4 * n + e] = -kInfinity;
    }
  }
}

// What has expired by the thread's two queries, at these positions.
template <int N>
__device__ __forceinline__ void hide_expired(float (&x)[N], int first, const Expiries& expiries,
                                             const int32_t (&positions)[2], int lane) {
#pragma unroll
  for (int n = 0; n < N / 4; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int32_t until = expiries.of(first + n * 8 + lane % 4 * 2 + e);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (positions[half] >= until) x[4 * n + 2 * half + e] = -kInfinity;
      }
    }
  }
}

// The sums of a product are the left fragments of the next one, two by two.
template <int N>
__device__ __forceinline__ void pack_weights(const float (&x)[2 * N], uint32_t (&weights)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) weights[i] = to_bf16_pair(x[2 * i], x[2 * i + 1]);
}

template <int D>
__device__ __forceinline__ void pv(float (&output)[D / 2], const uint32_t (&weights)[kKeys / 4], const void* values) {
  const Operand right = by_columns<kKeys>(values);
  product_fence();
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) product_by_columns(output, weights + 4 * k, right + row_step(k), 1);
  product_commit();
}

// Two neighbouring values of every eight columns: this lane's part of one pair's output, or of the piece's share of it.
template <int D, class Value>
__device__ void write_row(const AttendArgs& args, const AttendWork& work, const AttendBlock& block, int piece, int pair,
                          int lane, const Value& value) {
  if (work.pieces == 1) {
    bf16* to = work.output + block.vector(args, work, pair) * D + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) *reinterpret_cast<uint32_t*>(to + n * 8) = to_bf16_pair(value(n, 0), value(n, 1));
  } else {
    float* to = work.piece_outputs + (piece * work.vectors + block.scratch(args, work, pair)) * D + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) *reinterpret_cast<float2*>(to + n * 8) = {value(n, 0), value(n, 1)};
  }
}

// Queries of 64 pairs, zero beyond the last one, by the warpgroup that will use them.
template <int D>
__device__ void load_queries(const AttendArgs& args, const AttendWork& work, const AttendBlock& block, int first_pair,
                             int last_pair, unsigned char* queries, int thread) {
  for (int at = thread; at < 64 * D / 8; at += kWarpgroup) {
    const int row = at / (D / 8), column = at % (D / 8) * 8, pair = first_pair + row;
    const uint4 word = pair <= last_pair
                           ? *reinterpret_cast<const uint4*>(work.queries + block.vector(args, work, pair) * D + column)
                           : uint4{};
    void* panel = queries + column / kPanelColumns * kPanelBytes<64>;
    *static_cast<uint4*>(panel_piece(panel, row, column % kPanelColumns / 8)) = word;
  }
}

// What the thread has of its two pairs, the tile's `first_pair` + 0 and + 8.
template <int D>
__device__ __forceinline__ void write_outputs(const AttendArgs& args, const AttendWork& work, const AttendBlock& block,
                                              int piece, int first_pair, int last_pair, int lane, float scale,
                                              const Rows& rows, const float (&output)[D / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Softmax total{rows.largest[half] * scale, sum_of_four_lanes(rows.sum[half])};
    const int pair = first_pair + 8 * half;
    if (pair > last_pair) continue;
    if (lane % 4 == 0) write_softmax(args, work, block, piece, pair, total);
    const float share = work.pieces == 1 ? __fdividef(1.0f, total.sum) : 1.0f;
    write_row<D>(args, work, block, piece, pair, lane,
                 [&](int n, int e) { return output[4 * n + 2 * half + e] * share; });
  }
}

// One of the warpgroups that compute: 64 pairs of the tile. Step t's qk and step t − 1's pv are in flight together.
// kExpires: entries can have expired; a kernel of its own, since registers are scarce.
template <int D, int kGroups, bool kExpires>
__device__ void consume(const AttendArgs& args, const AttendWork& work, const AttendBlock& block, const Tile& tile,
                        int piece, unsigned char* queries, const unsigned char* key_tiles,
                        const unsigned char* value_tiles, Ring<Shape<D, kGroups>::kStages>& ring) {
  using Shape = Shape<D, kGroups>;
  const int group = __shfl_sync(kWarp, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const int first_pair = tile.first_pair + 64 * group;

  load_queries<D>(args, work, block, first_pair, tile.last_pair, queries, thread);
  publish_to_async();
  named_sync(1 + group, kWarpgroup);

  const auto seen_by = [&](int pair) {
    return min(tile.end, static_cast<int>(block.base) + min(pair, tile.last_pair) / work.group + 1);
  };
  const int first_row = thread / 32 * 16 + lane / 4;
  const int seen[2] = {seen_by(first_pair + first_row), seen_by(first_pair + first_row + 8)};
  const Expiries expiries = block.expiries(args);
  const auto position_of = [&](int pair) { return block.position(work, min(pair, tile.last_pair)); };
  const int32_t positions[2] = {position_of(first_pair + first_row), position_of(first_pair + first_row + 8)};
  // Steps from the newest on that some row does not wholly see.
  const int wholly_seen = kExpires ? min(seen_by(first_pair), expiries.first) : seen_by(first_pair);
  const int unmasked_steps = max(0, wholly_seen - tile.begin) / kKeys;
  const int masked_steps = tile.steps - min(tile.steps, unmasked_steps);
  const auto hide = [&](float(&x)[kKeys / 2], int step) {
    const int first = tile.begin + step * kKeys;
    mask(x, first, seen, lane);
    if (kExpires && expiries.may(first, first + kKeys)) hide_expired(x, first, expiries, positions, lane);
  };

  const auto release = [&](Barrier& barrier) {
    if (lane == 0) barrier.arrive();
  };

  const float scale = args.scale * kToLog2;
  Rows rows;
  float logits[kKeys / 2], output[D / 2] = {}, shrink[2];
  uint32_t weights[kKeys / 4];

  ring.full_keys[0].wait(0);
  qk<D>(logits, queries, key_tiles);
  product_wait<0>();
  pin(logits);
  release(ring.empty_keys[0]);
  hide(logits, tile.steps - 1);
  softmax<true>(logits, scale, rows, shrink);
  pack_weights(logits, weights);

  const auto step = [&](int t, auto masked) {
    constexpr bool kMasked = decltype(masked)::value;
    const int stage = t % Shape::kStages, last = (t - 1) % Shape::kStages;
    ring.full_keys[stage].wait(t / Shape::kStages % 2);
    pin(logits);
    pin(weights);
    pin(output);
    qk<D>(logits, queries, key_tiles + stage * Shape::kTileBytes);
    ring.full_values[last].wait((t - 1) / Shape::kStages % 2);
    pv<D>(output, weights, value_tiles + last * Shape::kTileBytes);
    product_wait<1>();
    pin(logits);
    release(ring.empty_keys[stage]);
    if (kMasked) hide(logits, tile.steps - 1 - t);
    softmax<kMasked>(logits, scale, rows, shrink);
    compute_now(rows.sum, ring.nowhere);
    product_wait<0>();
    pin(output);
    pin(weights);
    release(ring.empty_values[last]);
#pragma unroll
    for (int i = 0; i < D / 2; ++i) output[i] *= shrink[i / 2 % 2];
    pack_weights(logits, weights);
  };
  int t = 1;
  for (; t < masked_steps; ++t) step(t, std::true_type());
  for (; t < tile.steps; ++t) step(t, std::false_type());

  const int last = (tile.steps - 1) % Shape::kStages;
  ring.full_values[last].wait((tile.steps - 1) / Shape::kStages % 2);
  pin(output);
  pin(weights);
  pv<D>(output, weights, value_tiles + last * Shape::kTileBytes);
  product_wait<0>();
  pin(output);

  write_outputs<D>(args, work, block, piece, first_pair + first_row, tile.last_pair, lane, scale, rows, output);
}

template <int D, int kGroups, bool kExpires>
__device__ void attend_tile(const AttendArgs& args, const AttendWork& work, const CUtensorMap& key_map,
                            const CUtensorMap& value_map) {
  using Shape = Shape<D, kGroups>;
  extern __shared__ unsigned char unaligned[];
  __shared__ Ring<Shape::kStages> ring;

  // Late tiles see the most keys: they start first. The tiles of a KV head run together and share its keys in L2.
  unsigned block_number = blockIdx.x;
  const int piece = static_cast<int>(block_number % work.pieces);
  block_number /= work.pieces;
  const auto tiles = static_cast<unsigned>(work.tiles);
  const unsigned index = tiles - 1 - block_number % tiles;
  block_number /= tiles;
  const AttendBlock block(args, work, block_number / args.cache.kv_heads, block_number % args.cache.kv_heads);
  if (block.base < 0) __trap();  // without a word: a call, as of printf, makes the compiler wait after each product
  Tile tile;
  tile.first_pair = static_cast<int>(index) * Shape::kRows;
  if (tile.first_pair >= block.pairs) return;
  tile.last_pair = min(tile.first_pair + Shape::kRows, block.pairs) - 1;
  tile.begin = static_cast<int>(piece * work.piece_keys);
  tile.end = static_cast<int>(
      min(block.base + tile.last_pair / work.group + 1, static_cast<int64_t>(tile.begin) + work.piece_keys));
  if (tile.begin >= tile.end) return;
  tile.steps = (tile.end - tile.begin + kKeys - 1) / kKeys;

  unsigned char* shared = align_panels(unaligned);
  unsigned char* key_tiles = shared + kGroups * Shape::kQueryBytes;
  unsigned char* value_tiles = key_tiles + Shape::kStages * Shape::kTileBytes;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      ring.full_keys[stage].init(1);
      ring.full_values[stage].init(1);
      ring.empty_keys[stage].init(kGroups * kWarpgroup / 32);
      ring.empty_values[stage].init(kGroups * kWarpgroup / 32);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    shrink_registers<kGroups == 1 ? 96 : kGroups == 2 ? 56 : 32>();
    if (threadIdx.x < 32) {
      load<D, kGroups>(args.cache, block, tile, key_map, value_map, key_tiles, value_tiles, ring);
    }
  } else {
    grow_registers<kGroups == 1 ? 240 : kGroups == 2 ? 224 : 160>();
    unsigned char* queries = shared + (threadIdx.x / kWarpgroup - 1) * Shape::kQueryBytes;
    consume<D, kGroups, kExpires>(args, work, block, tile, piece, queries, key_tiles, value_tiles, ring);
  }
}

template <int D, int kGroups, bool kExpires>
__global__ void __launch_bounds__(Shape<D, kGroups>::kThreads, 1)
    attend_prefill(const __grid_constant__ AttendArgs args, const __grid_constant__ AttendWork work,
                   const __grid_constant__ CUtensorMap key_map, const __grid_constant__ CUtensorMap value_map) {
  if constexpr (kHopperCode) attend_tile<D, kGroups, kExpires>(args, work, key_map, value_map);
}

template <int D, int kGroups>
void run(const AttendArgs& args, AttendWork work) {
  using Shape = Shape<D, kGroups>;
  const int64_t blocks = args.segment_count * args.cache.kv_heads;
  work.tiles = ceil_div(args.max_count * work.group, Shape::kRows);
  const Pieces pieces(args, work, {.blocks = blocks * work.tiles, .waves = 2, .step = kKeys, .least = 512});
  const auto kernel = args.cache.expires ? attend_prefill<D, kGroups, true> : attend_prefill<D, kGroups, false>;
  launch(kernel, blocks * work.tiles * work.pieces, Shape::kThreads, Shape::kSharedBytes, args, work,
         tensor_map(args.cache.keys.as<bf16>(), D, kPageTokens),
         tensor_map(args.cache.values.as<bf16>(), D, kPageTokens));
  combine_pieces(args, work);
}

}  // namespace

void run_prefill(const AttendArgs& args, AttendWork work) {
  const bool narrow = args.max_count * work.group <= 64;
  if (args.cache.head_dim == 64) return narrow ? run<64, 1>(args, work) : run<64, 3>(args, work);
  KV_CHECK(args.cache.head_dim == 128);
  return narrow ? run<128, 1>(args, work) : run<128, 2>(args, work);
}

}  // namespace kv::cuda
