#include "kernels/attend.h"

#include "kernels/cuda/mma.cuh"

// Three kernels. `attend_tiles` is FlashAttention-2's schedule over pages; `attend_few` serves blocks of at most 16
// (query, head) pairs a KV head, which is decoding; both may split a row's keys into pieces that `combine_pieces`
// joins. `column_statistics` recomputes the probabilities from each query's maximum and sum. A block's rows are the
// pairs m = i · group + g of one KV head, so that all query heads of a group share one reading of its keys and values.
// Splits depend on sizes that the host knows, never on timing, and every sum has a fixed order.

namespace kv::cuda {

namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kThreads = 128;
constexpr int kKeys = 64;  // of a step of attend_tiles
constexpr int kWarps = kThreads / 32;

// Of one (query, query head): largest logit, in units of log 2, and Σ 2^(logit − largest) or its inverse.
struct Softmax {
  float largest;
  float sum;
};

struct Work {
  const bf16* queries;
  bf16* output;
  float* piece_outputs;    // [pieces, vectors, head_dim], not divided by the sum
  Softmax* piece_softmax;  // [pieces, vectors]
  Softmax* softmax;        // [vectors], sum inverted; null when nobody asks for column statistics
  int64_t vectors;         // segment_count · max_count · q_heads
  int64_t tiles;           // of (query, head) pairs a KV head
  int64_t piece_keys;      // a piece is that many keys; a multiple of what a step takes
  int pieces;
  int group;
};

// What the pair m of one (segment, KV head) stands for.
struct Block {
  Segment segment;
  int64_t index;
  int64_t kv_head;
  int64_t row;
  int64_t base;  // keys that were there before the block: query i sees [0, base + i]
  int pairs;

  __device__ Block(const AttendArgs& args, const Work& work, int64_t segment_index, int64_t head)
      : segment(args.segments[segment_index]),
        index(segment_index),
        kv_head(head),
        row(int64_t{segment.sequence} * args.cache.kv_heads + head),
        base(args.cache.lengths[row] - segment.count),
        pairs(segment.count * work.group) {
    KV_DEVICE_CHECK(base >= 0);
  }

  // In the packed tensors, times head_dim.
  __device__ int64_t vector(const AttendArgs& args, const Work& work, int pair) const {
    return int64_t{segment.first_token + pair / work.group} * args.q_heads + kv_head * work.group + pair % work.group;
  }
  // In the scratch arrays, which leave room for max_count queries a segment.
  __device__ int64_t scratch(const AttendArgs& args, const Work& work, int pair) const {
    return (index * args.max_count + pair / work.group) * args.q_heads + kv_head * work.group + pair % work.group;
  }
};

__device__ void write_output(const Work& work, int64_t at, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(work.output + at) = __floats2bfloat162_rn(a, b);
}

// Writes one pair's two neighbouring output values, or the piece's share of them.
__device__ void write_values(const AttendArgs& args, const Work& work, const Block& block, int piece, int pair, int d,
                             float a, float b, float sum) {
  const int dim = args.cache.head_dim;
  if (d >= dim) return;
  if (work.pieces == 1) {
    write_output(work, block.vector(args, work, pair) * dim + d, a / sum, b / sum);
  } else {
    float* to = work.piece_outputs + (piece * work.vectors + block.scratch(args, work, pair)) * dim + d;
    to[0] = a;
    to[1] = b;
  }
}

__device__ void write_softmax(const AttendArgs& args, const Work& work, const Block& block, int piece, int pair,
                              Softmax softmax) {
  const int64_t at = block.scratch(args, work, pair);
  if (work.pieces > 1) {
    work.piece_softmax[piece * work.vectors + at] = softmax;
  } else if (work.softmax) {
    work.softmax[at] = {softmax.largest, 1 / softmax.sum};
  }
}

// One step of the online softmax for one row of a warp's tile, held by four lanes: `logits` (raw products, −∞ where
// masked) become probabilities relative to the new maximum; returns what older sums and outputs shrink by.
template <int N>
__device__ float online_step(float (&logits)[N][4], int half, float scale, Softmax& state) {
  float largest = -kInfinity;
#pragma unroll
  for (int n = 0; n < N; ++n) largest = fmaxf(largest, fmaxf(logits[n][2 * half], logits[n][2 * half + 1]));
  largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 2));
  largest = fmaxf(largest * scale, state.largest);
  const float from = largest == -kInfinity ? 0.0f : largest;  // nothing seen yet: −∞ − −∞ is no number
  const float shrink = exp2_fast(state.largest - from);
  float sum = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& x = logits[n][2 * half + e];
      x = exp2_fast(x * scale - from);
      sum += x;
    }
  }
  state = {largest, state.sum * shrink + sum};  // this lane's share of the sum
  return shrink;
}

__device__ float sum_of_four_lanes(float x) {
  x += __shfl_xor_sync(kWarp, x, 1);
  return x + __shfl_xor_sync(kWarp, x, 2);
}

// ---- Many queries ---------------------------------------------------------------------------------------------------

// 64·M pairs a thread block, 16·M a warp. With M = 2 each fragment of keys and values that a warp reads from shared
// memory serves two products, without which shared memory would be the limit.
template <int D, int M>
struct Tiles {
  static constexpr int kPairs = 64 * M;
  static constexpr size_t kSharedBytes = (kPairs + 4 * kKeys) * kStride<D> * sizeof(bf16);
};

template <int D, int M>
__global__ void __launch_bounds__(kThreads, D <= 128 ? 2 : 1) attend_tiles(AttendArgs args, Work work) {
  extern __shared__ __align__(16) unsigned char shared[];
  bf16* query_tile = reinterpret_cast<bf16*>(shared);
  bf16* key_tiles = query_tile + Tiles<D, M>::kPairs * kStride<D>;  // two, then two of values
  bf16* value_tiles = key_tiles + 2 * kKeys * kStride<D>;
  const PagedView& cache = args.cache;
  const int dim = cache.head_dim;

  // Late tiles see the most keys: they start first. The tiles of a KV head run together and share its keys in L2.
  int64_t rest = blockIdx.x;
  const int piece = static_cast<int>(rest % work.pieces);
  rest /= work.pieces;
  const int64_t tile = work.tiles - 1 - rest % work.tiles;
  rest /= work.tiles;
  const Block block(args, work, rest / cache.kv_heads, rest % cache.kv_heads);
  // Slots and pairs fit 32 bits; registers are scarce here.
  const int first_pair = static_cast<int>(tile) * Tiles<D, M>::kPairs;
  if (first_pair >= block.pairs) return;
  const int last_pair = min(first_pair + Tiles<D, M>::kPairs, block.pairs) - 1;
  const auto seen_by = [&](int pair) { return static_cast<int>(block.base) + min(pair, last_pair) / work.group + 1; };
  const int begin = static_cast<int>(piece * work.piece_keys);
  const int end = static_cast<int>(min(int64_t{seen_by(last_pair)}, begin + work.piece_keys));
  if (begin >= end) return;

  const auto stage = [&](int first, int buffer) {
    stage_rows<D>(key_tiles + buffer * kKeys * kStride<D>, kKeys, dim, threadIdx.x, kThreads,
                  [&](int r) { return first + r < end ? key_of(cache, block.row, first + r) : nullptr; });
    stage_rows<D>(value_tiles + buffer * kKeys * kStride<D>, kKeys, dim, threadIdx.x, kThreads,
                  [&](int r) { return first + r < end ? value_of(cache, block.row, first + r) : nullptr; });
    commit_copies();
  };
  stage_rows<D>(query_tile, Tiles<D, M>::kPairs, dim, threadIdx.x, kThreads, [&](int r) {
    const int pair = first_pair + r;
    return pair <= last_pair ? work.queries + block.vector(args, work, pair) * dim : nullptr;
  });
  stage(begin, 0);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp * 16 * M;
  const float scale = args.scale * kLog2E;
  float output[M][D / 8][4] = {};
  Softmax state[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) state[m][0] = state[m][1] = {-kInfinity, 0};

  for (int first = begin, buffer = 0; first < end; first += kKeys, buffer = 1 - buffer) {
    wait_copies<0>();
    __syncthreads();
    if (first + kKeys < end) stage(first + kKeys, 1 - buffer);
    const bf16* keys = key_tiles + buffer * kKeys * kStride<D>;
    const bf16* values = value_tiles + buffer * kKeys * kStride<D>;

    float logits[M][kKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t a[M][4];
#pragma unroll
      for (int m = 0; m < M; ++m) load_left<D>(a[m], query_tile, first_row + 16 * m, k, lane);
#pragma unroll
      for (int n = 0; n < kKeys / 8; n += 2) {
        uint32_t b[4];
        load_right<D>(b, keys, n * 8, k, lane);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          multiply_add(logits[m][n], a[m], b[0], b[1]);
          multiply_add(logits[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
    if (first + kKeys > min(seen_by(first_pair), end)) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int seen = min(end, seen_by(first_pair + first_row + m * 16 + lane / 4 + 8 * half));
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              if (first + n * 8 + lane % 4 * 2 + e >= seen) logits[m][n][2 * half + e] = -kInfinity;
            }
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shrink = online_step(logits[m], half, scale, state[m][half]);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          output[m][n][2 * half] *= shrink;
          output[m][n][2 * half + 1] *= shrink;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t a[M][4];
#pragma unroll
      for (int m = 0; m < M; ++m) {
        a[m][0] = pack(logits[m][2 * k][0], logits[m][2 * k][1]);
        a[m][1] = pack(logits[m][2 * k][2], logits[m][2 * k][3]);
        a[m][2] = pack(logits[m][2 * k + 1][0], logits[m][2 * k + 1][1]);
        a[m][3] = pack(logits[m][2 * k + 1][2], logits[m][2 * k + 1][3]);
      }
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        uint32_t b[4];
        load_right_by_columns<D>(b, values, k * 16, n / 2, lane);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          multiply_add(output[m][n], a[m], b[0], b[1]);
          multiply_add(output[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Softmax total{state[m][half].largest, sum_of_four_lanes(state[m][half].sum)};
      const int pair = first_pair + first_row + m * 16 + lane / 4 + 8 * half;
      if (pair > last_pair) continue;
      if (lane % 4 == 0) write_softmax(args, work, block, piece, pair, total);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        write_values(args, work, block, piece, pair, n * 8 + lane % 4 * 2, output[m][n][2 * half],
                     output[m][n][2 * half + 1], total.sum);
      }
    }
  }
}

// ---- Few queries ----------------------------------------------------------------------------------------------------

// At most 16 pairs: memory is the limit, so each warp streams pages of its own through its own stages, without a
// barrier among warps, and the warps' results are joined at the end.
template <int D>
struct Few {
  static constexpr int kPairs = 16;
  static constexpr int kStages = D <= 128 ? 3 : 2;
  static constexpr int kPageValues = kPageTokens * kStride<D>;
  static constexpr size_t kSharedBytes = kWarps * kStages * 2 * kPageValues * sizeof(bf16);
  static constexpr int kMaxPages = kWarps * 32;  // of a piece: a lane keeps one page number
  static_assert(kSharedBytes >= kWarps * kPairs * (D + 2) * sizeof(float));
};

template <int D>
__global__ void __launch_bounds__(kThreads) attend_few(AttendArgs args, Work work) {
  using Shape = Few<D>;
  extern __shared__ __align__(16) unsigned char shared[];
  const PagedView& cache = args.cache;
  const int dim = cache.head_dim;
  int64_t rest = blockIdx.x;
  const int piece = static_cast<int>(rest % work.pieces);
  rest /= work.pieces;
  const Block block(args, work, rest / cache.kv_heads, rest % cache.kv_heads);
  const int64_t begin = piece * work.piece_keys;
  const int64_t end = min(block.base + block.segment.count, begin + work.piece_keys);
  if (block.pairs == 0 || begin >= end) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  HeldRows<D, 1> queries;
  stage_rows<D>(reinterpret_cast<bf16*>(shared), Shape::kPairs, dim, threadIdx.x, kThreads,
                [&](int r) { return r < block.pairs ? work.queries + block.vector(args, work, r) * dim : nullptr; });
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  queries.load(reinterpret_cast<const bf16*>(shared), 0, lane);
  __syncthreads();

  // This warp's pages: begin / 16 + warp, and every fourth after it.
  const int64_t first_page = begin / kPageTokens + warp;
  const int64_t all_pages = (end + kPageTokens - 1) / kPageTokens;
  const int pages = static_cast<int>(max(int64_t{0}, (all_pages - first_page + kWarps - 1) / kWarps));
  const int32_t own_page =
      lane < pages ? cache.page_table[block.row * cache.max_pages + first_page + lane * kWarps] : -1;
#ifndef NDEBUG
  KV_DEVICE_CHECK(lane >= pages || own_page >= 0);
#endif
  bf16* stages = reinterpret_cast<bf16*>(shared) + warp * Shape::kStages * 2 * Shape::kPageValues;
  const auto stage = [&](int t) {
    const int32_t page = __shfl_sync(kWarp, own_page, t % 32);
    if (t < pages) {
      bf16* keys = stages + t % Shape::kStages * 2 * Shape::kPageValues;
      const int64_t first_slot = (first_page + int64_t{t} * kWarps) * kPageTokens;
      const int64_t from = int64_t{page} * kPageTokens * dim;
      const auto* pool_keys = static_cast<const bf16*>(cache.keys.data) + from;
      const auto* pool_values = static_cast<const bf16*>(cache.values.data) + from;
      stage_rows<D>(keys, kPageTokens, dim, lane, 32,
                    [&](int r) { return first_slot + r < end ? pool_keys + r * dim : nullptr; });
      stage_rows<D>(keys + Shape::kPageValues, kPageTokens, dim, lane, 32,
                    [&](int r) { return first_slot + r < end ? pool_values + r * dim : nullptr; });
    }
    commit_copies();  // also when empty, so that the count of groups in flight stays the same
  };
#pragma unroll
  for (int t = 0; t < Shape::kStages - 1; ++t) stage(t);

  const float scale = args.scale * kLog2E;
  float output[1][D / 8][4] = {};
  Softmax state[2];
  int64_t seen[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    state[half] = {-kInfinity, 0};
    seen[half] = min(end, block.base + min(lane / 4 + 8 * half, block.pairs - 1) / work.group + 1);
  }
  for (int t = 0; t < pages; ++t) {
    wait_copies<Shape::kStages - 2>();
    __syncwarp();  // the page has come, for all lanes; and all are done with the one before, whose place is next
    stage(t + Shape::kStages - 1);
    const bf16* keys = stages + t % Shape::kStages * 2 * Shape::kPageValues;
    float logits[1][2][4];
    queries.template times<2>(keys, lane, logits);
    const int64_t first_slot = (first_page + int64_t{t} * kWarps) * kPageTokens;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (first_slot + n * 8 + lane % 4 * 2 + e % 2 >= seen[e / 2]) logits[0][n][e] = -kInfinity;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float shrink = online_step(logits[0], half, scale, state[half]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        output[0][n][2 * half] *= shrink;
        output[0][n][2 * half + 1] *= shrink;
      }
    }
    const uint32_t a[4] = {pack(logits[0][0][0], logits[0][0][1]), pack(logits[0][0][2], logits[0][0][3]),
                           pack(logits[0][1][0], logits[0][1][1]), pack(logits[0][1][2], logits[0][1][3])};
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t b[4];
      load_right_by_columns<D>(b, keys + Shape::kPageValues, 0, n / 2, lane);
      multiply_add(output[0][n], a, b[0], b[1]);
      multiply_add(output[0][n + 1], a, b[2], b[3]);
    }
  }

  // Joins the warps, in their order, through the memory of the stages.
  wait_copies<0>();
  __syncthreads();
  float* outputs = reinterpret_cast<float*>(shared);                                   // [warps, 16, D]
  Softmax* states = reinterpret_cast<Softmax*>(outputs + kWarps * Shape::kPairs * D);  // [warps, 16]
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = lane / 4 + 8 * half;
    const float sum = sum_of_four_lanes(state[half].sum);
    if (lane % 4 == 0) states[warp * Shape::kPairs + pair] = {state[half].largest, sum};
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      float* to = outputs + (warp * Shape::kPairs + pair) * D + n * 8 + lane % 4 * 2;
      to[0] = output[0][n][2 * half];
      to[1] = output[0][n][2 * half + 1];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < block.pairs * (D / 2); i += kThreads) {
    const int pair = i / (D / 2), d = i % (D / 2) * 2;
    Softmax total{-kInfinity, 0};
    for (int w = 0; w < kWarps; ++w) total.largest = fmaxf(total.largest, states[w * Shape::kPairs + pair].largest);
    float a = 0, b = 0;
    for (int w = 0; w < kWarps; ++w) {
      const Softmax part = states[w * Shape::kPairs + pair];
      if (part.largest == -kInfinity) continue;
      const float share = exp2_fast(part.largest - total.largest);
      total.sum += share * part.sum;
      a += share * outputs[(w * Shape::kPairs + pair) * D + d];
      b += share * outputs[(w * Shape::kPairs + pair) * D + d + 1];
    }
    if (d == 0) write_softmax(args, work, block, piece, pair, total);
    write_values(args, work, block, piece, pair, d, a, b, total.sum);
  }
}

// ---- Joining pieces -------------------------------------------------------------------------------------------------

// One warp a (query, query head); a query's pieces are those that begin before its own key.
__global__ void combine_pieces(AttendArgs args, Work work) {
  const int64_t vector = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (vector >= work.vectors) return;
  const int lane = threadIdx.x % 32;
  const int dim = args.cache.head_dim;
  const int64_t q_head = vector % args.q_heads;
  const int64_t query = vector / args.q_heads % args.max_count;
  const Block block(args, work, vector / args.q_heads / args.max_count, q_head / work.group);
  if (query >= block.segment.count) return;
  const int pieces = static_cast<int>((block.base + query + work.piece_keys) / work.piece_keys);
  Softmax total{-kInfinity, 0};
  for (int p = lane; p < pieces; p += 32) {
    total.largest = fmaxf(total.largest, work.piece_softmax[p * work.vectors + vector].largest);
  }
  total.largest = warp_reduce(total.largest, Larger());
  for (int p = lane; p < pieces; p += 32) {
    const Softmax part = work.piece_softmax[p * work.vectors + vector];
    if (part.largest != -kInfinity) total.sum += part.sum * exp2_fast(part.largest - total.largest);
  }
  total.sum = warp_reduce(total.sum, Add());
  const int64_t to = (int64_t{block.segment.first_token + query} * args.q_heads + q_head) * dim;
  for (int d = 2 * lane; d < dim; d += 64) {
    float a = 0, b = 0;
    for (int p = 0; p < pieces; ++p) {
      const float largest = work.piece_softmax[p * work.vectors + vector].largest;
      if (largest == -kInfinity) continue;
      const float share = exp2_fast(largest - total.largest);
      const float* from = work.piece_outputs + (p * work.vectors + vector) * dim + d;
      a += share * from[0];
      b += share * from[1];
    }
    write_output(work, to + d, a / total.sum, b / total.sum);
  }
  if (lane == 0 && work.softmax) work.softmax[vector] = {total.largest, 1 / total.sum};
}

// ---- Column statistics ----------------------------------------------------------------------------------------------

// A thread block keeps its keys in registers and streams the queries that see them: a column's sum and maximum never
// leave its four lanes until the end. Sums go by tile of 64 queries first, then over tiles, against the rounding of
// long chains.
template <int D>
__global__ void __launch_bounds__(kThreads) column_statistics(AttendArgs args, Work work, int64_t key_tiles) {
  using Tile = KeyTile<D>;
  constexpr int M = Tile::kM;
  extern __shared__ __align__(16) unsigned char shared[];
  bf16* staged = reinterpret_cast<bf16*>(shared);  // two tiles of queries; at first the keys
  __shared__ Softmax softmax[2][Tile::kQueries];
  const PagedView& cache = args.cache;
  const int dim = cache.head_dim;
  // Query heads of a group run next to each other and share its keys in L2.
  int64_t rest = blockIdx.x;
  const int g = static_cast<int>(rest % work.group);
  rest /= work.group;
  const int64_t first_slot = rest % key_tiles * Tile::kKeys;
  rest /= key_tiles;
  const Block block(args, work, rest / cache.kv_heads, rest % cache.kv_heads);
  const int64_t length = block.base + block.segment.count;
  if (block.segment.count == 0 || first_slot >= length) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  stage_rows<D>(staged, Tile::kKeys, dim, threadIdx.x, kThreads,
                [&](int r) { return first_slot + r < length ? key_of(cache, block.row, first_slot + r) : nullptr; });
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  HeldRows<D, M> keys;
  keys.load(staged, warp * 16 * M, lane);
  __syncthreads();

  const int count = block.segment.count;
  const auto stage = [&](int first, int buffer) {
    stage_rows<D>(staged + buffer * Tile::kQueries * kStride<D>, Tile::kQueries, dim, threadIdx.x, kThreads,
                  [&](int r) {
                    const int pair = (first + r) * work.group + g;
                    return first + r < count ? work.queries + block.vector(args, work, pair) * dim : nullptr;
                  });
    commit_copies();
    if (threadIdx.x < Tile::kQueries) {
      const int query = first + static_cast<int>(threadIdx.x);
      // A query beyond the block weighs nothing.
      softmax[buffer][threadIdx.x] =
          query < count ? work.softmax[block.scratch(args, work, query * work.group + g)] : Softmax{0, 0};
    }
  };
  const float scale = args.scale * kLog2E;
  float sums[M][2] = {}, largest[M][2] = {};
  // The first query that sees any of these keys.
  int first = static_cast<int>(max(int64_t{0}, first_slot - block.base)) / Tile::kQueries * Tile::kQueries;
  stage(first, 0);
  for (int buffer = 0; first < count; first += Tile::kQueries, buffer = 1 - buffer) {
    wait_copies<0>();
    __syncthreads();
    if (first + Tile::kQueries < count) stage(first + Tile::kQueries, 1 - buffer);
    float logits[M][8][4];
    keys.template times<8>(staged + buffer * Tile::kQueries * kStride<D>, lane, logits);
    const bool masked = first_slot + Tile::kKeys - 1 > block.base + first;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t slot = first_slot + warp * 16 * M + m * 16 + lane / 4 + 8 * half;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int query = n * 8 + lane % 4 * 2 + e;
            const Softmax of = softmax[buffer][query];
            float probability = exp2_fast(logits[m][n][2 * half + e] * scale - of.largest) * of.sum;
            if (masked && slot > block.base + first + query) probability = 0;
            sum += probability;
            largest[m][half] = fmaxf(largest[m][half], probability);
          }
        }
        sums[m][half] += sum;
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_four_lanes(sums[m][half]);
      float most = largest[m][half];
      most = fmaxf(most, __shfl_xor_sync(kWarp, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kWarp, most, 2));
      const int64_t slot = first_slot + warp * 16 * M + m * 16 + lane / 4 + 8 * half;
      if (lane % 4 != 0 || slot >= length) continue;
      const int64_t at = (block.row * work.group + g) * args.column_pitch + slot;
      if (args.column_sums) args.column_sums[at] = sum;
      if (args.column_max) args.column_max[at] = most;
    }
  }
}

// ---- Host -----------------------------------------------------------------------------------------------------------

// Splits rows so that the blocks fill the device about `waves` times, each piece a multiple of `step` keys, of at least
// `least` and, if given, at most `most`.
void split_keys(const AttendArgs& args, int64_t blocks, int64_t waves, int64_t step, int64_t least, int64_t most,
                Work& work) {
  const int64_t wanted = std::max<int64_t>(1, waves * multiprocessors() / std::max<int64_t>(1, blocks));
  int64_t keys = ceil_div(ceil_div(args.cache.max_length, wanted), step) * step;
  keys = std::max(keys, least);
  if (most > 0) keys = std::min(keys, most);
  work.piece_keys = keys;
  work.pieces = static_cast<int>(std::max<int64_t>(1, ceil_div(args.cache.max_length, keys)));
}

template <int D, int M>
void run_tiles(const AttendArgs& args, const Work& work) {
  const int64_t blocks = args.segment_count * args.cache.kv_heads * work.tiles * work.pieces;
  launch(attend_tiles<D, M>, blocks, kThreads, Tiles<D, M>::kSharedBytes, args, work);
}

template <int D>
void run(const AttendArgs& args, Work work) {
  constexpr int kManyPairs = D <= 128 ? 128 : 64;
  const int64_t pairs = args.max_count * work.group;
  const int64_t blocks = args.segment_count * args.cache.kv_heads;
  const bool few = pairs <= Few<D>::kPairs;
  const int64_t tile = pairs <= 64 ? 64 : kManyPairs;
  if (few) {
    work.tiles = 1;
    split_keys(args, blocks, 8, kWarps * kPageTokens, 256, Few<D>::kMaxPages * kPageTokens, work);
  } else {
    work.tiles = ceil_div(pairs, tile);
    split_keys(args, blocks * work.tiles, 2, kKeys, 512, 0, work);
  }
  const bool with_columns = args.column_sums || args.column_max;
  const int64_t pieces = work.pieces > 1 ? work.pieces : 0;
  const Scratch<float> piece_outputs(pieces * work.vectors * args.cache.head_dim);
  const Scratch<Softmax> piece_softmax(pieces * work.vectors), softmax(with_columns ? work.vectors : 0);
  work.piece_outputs = piece_outputs.data();
  work.piece_softmax = piece_softmax.data();
  work.softmax = softmax.data();

  if (few) {
    launch(attend_few<D>, blocks * work.pieces, kThreads, Few<D>::kSharedBytes, args, work);
  } else if (tile == 64) {
    run_tiles<D, 1>(args, work);
  } else if constexpr (D <= 128) {
    run_tiles<D, 2>(args, work);
  }
  if (work.pieces > 1) launch(combine_pieces, ceil_div(work.vectors, kWarps), kThreads, 0, args, work);
  if (!with_columns) return;
  using Tile = KeyTile<D>;
  KV_CHECK(args.column_pitch >= args.cache.max_length);
  const int64_t key_tiles = ceil_div(args.cache.max_length, Tile::kKeys);
  const size_t bytes = 2 * Tile::kQueries * kStride<D> * sizeof(bf16);
  static_assert(Tile::kKeys <= 2 * Tile::kQueries);
  launch(column_statistics<D>, blocks * key_tiles * work.group, kThreads, bytes, args, work, key_tiles);
}

}  // namespace

void attend(const AttendArgs& args) {
  const PagedView& cache = args.cache;
  check_cache(cache);
  KV_CHECK(cache.head_dim % 2 == 0 && args.q_heads % cache.kv_heads == 0);
  if (args.segment_count == 0 || args.max_count == 0) return;
  Work work{};
  work.queries = args.queries.as<bf16>();
  work.output = args.output.as<bf16>();
  check_vectors(work.queries, cache.head_dim);
  KV_CHECK(is_aligned(work.output, 4));
  work.vectors = args.segment_count * args.max_count * args.q_heads;
  work.group = args.q_heads / cache.kv_heads;
  with_width(cache.head_dim, [&](auto width) { run<width>(args, work); });
}

}  // namespace kv::cuda
