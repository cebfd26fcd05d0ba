#include <algorithm>

#include "kernels/cuda/biased_attention/hopper/query_sums.cuh"

// Gradients of attention in training on Hopper, head dimensions 64 and 128. One kernel for both passes: the owner's 64
// rows a warpgroup are the left operands, so that probabilities and slopes go from accumulators to left operands
// without leaving the registers:
//
//                   owned              passing             logits    slopes      sums
//   query gradients queries, gradients keys, values        q · k     dy · v      Σ ds k
//   key gradients   keys, values       queries, gradients  k · q     v · dy      Σ ds q, Σ p dy
//
// A step's sums and the next one's logits are in flight together. Products of slopes come after the sums, because there
// are no registers for both; meanwhile another warpgroup has the tensor cores. Where nobody asks but for the biases'
// gradients there are blocks of keys alone, and no sums.
//
// Where sums may have any order there are blocks of keys alone, too, which add to queries' gradients as they go
// (query_sums.cuh): five products, not seven. Their sums are awaited before the next logits: no registers for all.

namespace kv::cuda {

namespace {

// What is summed beside biases' gradients, and by whom.
enum class Sums : uint8_t {
  kNone,
  kByOwner,  // each vector by the block that owns it
  kByKeys,   // queries' by blocks of keys, too, in any order
};

template <int D, Owner kOwner, Sums kSums>
struct Shape {
  static constexpr bool kOfKeys = kOwner == Owner::kKeys;
  static constexpr bool kAddsQueries = kSums == Sums::kByKeys;
  static constexpr int kGroups = 2;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kStep = kOfKeys && D == 128 ? 64 : 128;  // as many as registers hold
  static constexpr int kStages = D * kStep == 128 * 128 ? 2 : kAddsQueries ? 3 : 4;
  static constexpr int kThreads = kWarpgroup * (kGroups + 1);
  static constexpr int kPanels = D / kPanelColumns;
  static constexpr int kOwnedBytes = kPanels * kPanelBytes<64>;  // of one tensor and one warpgroup
  static constexpr int kTileBytes = kPanels * kPanelBytes<kStep>;
  using Adder = QueryAdder<D, kStep, kGroups>;
  static constexpr size_t kSharedBytes = kPanelAlignment + 2 * kGroups * kOwnedBytes + 2 * kStages * kTileBytes +
                                         (kAddsQueries ? 2 * Adder::kSlopeBytes : 0);
  static constexpr int kNumbers = kOfKeys ? 2 : 1;  // of a column: a query's state, a key's b
  using Ring = cuda::Ring<kStep, kStages, kNumbers>;
};

// The first and the second of what is owned and of what passes by.
struct Operands {
  const bf16* owned[2];
  const bf16* passing[2];
};

// Of what passes by.
struct Maps {
  CUtensorMap queries, gradients;  // of keys
  CUtensorMap keys, values;        // of queries
};

// Of keys' gradients what each query head of a group brings in, where each has a block of its own: one after the other
// as [tokens, kv_heads] of them lie. Null where a block has all heads, and what nobody asks for.
struct HeadSums {
  int count = 1;  // blocks of the same keys: 1, or one for each head of the group
  float* keys = nullptr;
  float* values = nullptr;
  float* biases = nullptr;
};

// What a thread block computes. Of keys the queries pass by, head after head of the group, or of one, from the block's
// first key on; of queries the keys, from the newest to the oldest. So the first step has masks, whoever owns.
struct Tile {
  Segment segment;
  int owner_head;
  int share;         // which of the blocks of the same keys
  int passing_head;  // the first
  int first;         // owned row
  int end;           // of what passes by
  int steps_a_head;
  int steps;
  KeyTiles keys;  // of queries
};

template <Owner kOwner, Form kForm, int kStep>
__device__ __forceinline__ Step step_of(const Tile& tile, int t) {
  if (kOwner == Owner::kQueries) return {tile.keys.template first_of<kStep, kForm>(t), tile.passing_head};
  return {tile.first + t % tile.steps_a_head * kStep, tile.passing_head + t / tile.steps_a_head};
}

// What the thread's two rows bring into every pair: of keys their biases, of queries their states.
struct OwnedRows {
  float biases[2];
  QueryState states[2];
};

// ∂bias / ∂b in a tile whose pairs are all outside the window.
struct OutsideWindow {
  __device__ __forceinline__ static constexpr float at(int) { return 1; }
};

// Products q · k become probabilities.
template <Owner kOwner, Form kForm, class Weights, int N, int kNumbers, int kStep>
__device__ __forceinline__ void to_probabilities(float (&x)[N], const float (&columns)[kNumbers][kStep],
                                                 const OwnedRows& owned, const Weights& weights, float scale,
                                                 int lane) {
#pragma unroll
  for (int n = 0; n < N / 4; ++n) {
    float2 of{};  // of keys the queries' log_sum, of queries the keys' b
    if (kOwner == Owner::kKeys || kForm != Form::kNone) of = columns_of(columns[0], n, lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float of_column = e % 2 ? of.y : of.x;
      const float log_sum = kOwner == Owner::kKeys ? of_column : owned.states[e / 2].log_sum;
      const float b = kOwner == Owner::kKeys ? owned.biases[e / 2] : of_column;
      const float from = kForm == Form::kNone ? -log_sum : weights.at(apart<kOwner>(n, e)) * b - log_sum;
      x[4 * n + e] = exp2_fast(x[4 * n + e] * scale + from);
    }
  }
}

// And products dy · v slopes. Of biases' gradients, Σ ∂bias / ∂b · slope, that of kDistance is taken apart, for other
// instructions than in Weights: the compiler would keep all weights in registers.
template <Owner kOwner, Form kForm, int N, int kNumbers, int kStep>
__device__ __forceinline__ void to_slopes(const float (&p)[N], float (&dp)[N], const float (&columns)[kNumbers][kStep],
                                          const OwnedRows& owned, const KeyBias& bias, int distance, int lane,
                                          float (&bias_gradients)[2]) {
  float sums[2] = {}, moments[2] = {};
#pragma unroll
  for (int n = 0; n < N / 4; ++n) {
    float2 of{};
    if constexpr (kOwner == Owner::kKeys) of = columns_of(columns[1], n, lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float mean_slope = kOwner == Owner::kKeys ? (e % 2 ? of.y : of.x) : owned.states[e / 2].mean_slope;
      const float slope = p[4 * n + e] * (dp[4 * n + e] - mean_slope);
      dp[4 * n + e] = slope;
      if (kOwner == Owner::kQueries) continue;
      if (kForm == Form::kOutsideWindow && distance + apart<kOwner>(n, e) >= bias.window) sums[e / 2] += slope;
      if (kForm == Form::kDistance) {
        sums[e / 2] += slope;
        moments[e / 2] += static_cast<float>(apart<kOwner>(n, e)) * slope;
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (kForm == Form::kDistance) sums[half] = static_cast<float>(distance) * sums[half] + moments[half];
    bias_gradients[half] += sums[half];
  }
}

// One of the warpgroups that compute: 64 of the block's rows.
template <int D, Owner kOwner, Form kForm, Sums kSums>
__device__ __forceinline__ void consume(const BiasedAttentionBackwardArgs& args, const Operands& operands,
                                        const QueryState* states, const HeadSums& of_heads, QuerySums of_queries,
                                        const Tile& tile, int heads, unsigned char* owned,
                                        const unsigned char* first_tiles, const unsigned char* second_tiles,
                                        unsigned char* all_slopes, typename Shape<D, kOwner, kSums>::Ring& ring,
                                        SlopeBarriers& slope_barriers) {
  using Shape = Shape<D, kOwner, kSums>;
  constexpr bool kHasSums = kSums != Sums::kNone;
  constexpr bool kOfKeys = Shape::kOfKeys;
  constexpr int kStep = Shape::kStep;
  const PackedAttention& attention = args.attention;
  const int group = __shfl_sync(kWarp, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const int first_row = tile.first + 64 * group;
  const int row = first_row + thread / 32 * 16 + lane / 4;

  take_rows<D>(owned, operands.owned[0], tile.segment, heads, tile.owner_head, first_row, thread);
  take_rows<D>(owned + Shape::kOwnedBytes, operands.owned[1], tile.segment, heads, tile.owner_head, first_row, thread);
  publish_to_async();
  named_sync(1 + group, kWarpgroup);
  OwnedRows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row + 8 * half;
    if (kOfKeys) {
      rows.biases[half] = fmaxf(bias_of(attention, tile.segment, tile.owner_head, i), kLeastBias);
    } else {
      rows.states[half] =
          i < tile.segment.count ? states[vector_of(tile.segment, heads, tile.owner_head, i)] : no_query();
    }
  }

  const float scale = attention.scale * kToLog2;
  float x[kStep / 2], dp[kStep / 2], bias_gradients[2] = {};
  float of_first[kHasSums ? D / 2 : 1] = {}, of_second[kHasSums && kOfKeys ? D / 2 : 1] = {};
  uint32_t slopes[kHasSums ? kStep / 4 : 1], weights[kHasSums && kOfKeys ? kStep / 4 : 1];

  const auto multiply_first = [&](int stage) {
    multiply_rows<D, 64, kStep>(x, anew(owned), first_tiles + stage * Shape::kTileBytes);
    product_commit();
  };
  const auto multiply_second = [&](int stage) {
    multiply_rows<D, 64, kStep>(dp, anew(owned) + Shape::kOwnedBytes, second_tiles + stage * Shape::kTileBytes);
    product_commit();
  };
  const auto pin_sums = [&] {
    if constexpr (!kHasSums) return;
    pin(of_first);
    pin(slopes);
    if constexpr (kOfKeys) {
      pin(of_second);
      pin(weights);
    }
  };
  const auto add = [&](int stage) {
    pin_sums();
    product_fence();
    if constexpr (kHasSums && kOfKeys) {
      add_by_columns<kStep>(of_second, weights, second_tiles + stage * Shape::kTileBytes);
    }
    if constexpr (kHasSums) add_by_columns<kStep>(of_first, slopes, first_tiles + stage * Shape::kTileBytes);
    product_commit();
  };
  const auto distance_of = [&](int first) {
    const int column = first + lane % 4 * 2;
    return kOfKeys ? column - row : row - column;
  };
  // i − j of the tile's nearest pair.
  const auto least_of = [&](int first) { return kOfKeys ? first - (first_row + 63) : first_row - (first + kStep - 1); };
  // Most tiles of long sequences: their pairs need not be looked at one by one.
  const auto is_outside = [&](int first) {
    return kForm == Form::kOutsideWindow && least_of(first) >= attention.bias.window;
  };
  // The slopes' products may be in flight.
  const auto weigh = [&](int first, int stage) {
    const int distance = distance_of(first);
    if (is_outside(first)) {
      to_probabilities<kOwner, kForm>(x, ring.columns[stage], rows, OutsideWindow(), scale, lane);
    } else {
      if (least_of(first) < 0) mask<kOwner>(x, distance);
      to_probabilities<kOwner, kForm>(x, ring.columns[stage], rows, Weights<kForm>(attention.bias, distance), scale,
                                      lane);
    }
    compute_now(x, ring.nowhere);
  };
  // Afterwards both are left operands.
  const auto slope = [&](int first, int stage) {
    to_slopes<kOwner, kForm>(x, dp, ring.columns[stage], rows, attention.bias, distance_of(first), lane,
                             bias_gradients);
    if constexpr (kHasSums && kOfKeys) pack(x, weights);
    if constexpr (kHasSums) pack(dp, slopes);
  };
  typename Shape::Adder adder(of_queries, attention, tile.segment, owned - 2 * group * Shape::kOwnedBytes,
                              2 * Shape::kOwnedBytes, all_slopes, slope_barriers, group, thread);

  int first = step_of<kOwner, kForm, kStep>(tile, 0).first, head = tile.passing_head;
  ring.full[0][0].wait(0);
  pin(x);
  multiply_first(0);
  ring.full[1][0].wait(0);
  pin(dp);
  multiply_second(0);
  for (int t = 0;; ++t) {
    const int stage = t % Shape::kStages, next = (t + 1) % Shape::kStages;
    product_wait<1>();
    pin(x);
    weigh(first, stage);
    product_wait<0>();
    pin(dp);
    if (!kOfKeys && lane == 0) ring.empty[1][stage].arrive();
    slope(first, stage);
    if constexpr (Shape::kAddsQueries) adder.share(t, slopes);
    add(stage);
    if constexpr (Shape::kAddsQueries) {
      adder.multiply_last(t);
      product_wait<0>();
      adder.add_last(t, {first, head});
    }
    if (t + 1 == tile.steps) break;

    const uint32_t filled = (t + 1) / Shape::kStages % 2;
    if (kOfKeys) {
      first += kStep;
      if (first >= tile.end) {
        first = tile.first;
        ++head;
      }
    } else {
      first -= kStep;
      if (kForm == Form::kOutsideWindow && t + 1 == tile.keys.near) first -= tile.keys.gap * kStep;
    }
    ring.full[0][next].wait(filled);
    pin(x);
    multiply_first(next);
    product_wait<1>();
    pin_sums();
    ring.empty[0][stage].arrive();
    if (kOfKeys && lane == 0) ring.empty[1][stage].arrive();
    ring.full[1][next].wait(filled);
    pin(dp);
    multiply_second(next);
  }
  if constexpr (Shape::kAddsQueries) adder.multiply_last(tile.steps);
  product_wait<0>();
  pin_sums();
  if constexpr (Shape::kAddsQueries) adder.add_last(tile.steps, {});

  const auto write = [&](auto to, float factor, const auto& sums) {
    write_sums<D>(to, tile.segment, heads, tile.owner_head, row, lane, {factor, factor}, sums);
  };
  if constexpr (!kOfKeys) {
    write(args.query_gradient, attention.scale, of_first);
  } else {
    const bool is_whole = of_heads.count == 1;
    const int64_t before = attention.tokens * heads * tile.share;  // vectors of other shares
    if constexpr (kHasSums) {
      if (is_whole) {
        write(args.key_gradient, attention.scale, of_first);
        write(args.value_gradient, 1, of_second);
      } else {
        write(of_heads.keys + before * D, attention.scale, of_first);
        write(of_heads.values + before * D, 1, of_second);
      }
    }
    if (!args.bias_gradient) return;
    float* to = is_whole ? args.bias_gradient : of_heads.biases + before;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_four_lanes(bias_gradients[half]);
      const int key = row + 8 * half;
      if (lane % 4 == 0 && key < tile.segment.count) to[vector_of(tile.segment, heads, tile.owner_head, key)] = sum;
    }
  }
}

template <int D, Owner kOwner, Form kForm, Sums kSums>
__device__ void differentiate_tile(const BiasedAttentionBackwardArgs& args, const QueryState* states,
                                   const HeadSums& of_heads, QuerySums of_queries, int tiles, unsigned block,
                                   const CUtensorMap& first_map, const CUtensorMap& second_map) {
  using Shape = Shape<D, kOwner, kSums>;
  constexpr bool kOfKeys = Shape::kOfKeys;
  extern __shared__ unsigned char unaligned[];
  __shared__ typename Shape::Ring ring;
  __shared__ SlopeBarriers slope_barriers;

  // What takes longest starts first: early keys are seen by the most queries, late queries see the most keys.
  const PackedAttention& attention = args.attention;
  const int heads = kOfKeys ? attention.kv_heads : attention.q_heads;
  const int passing_heads = kOfKeys ? attention.q_heads : attention.kv_heads;
  const int shares = kOfKeys ? of_heads.count : 1, heads_a_share = kOfKeys ? attention.group() / shares : 1;
  const Place place(attention, heads * shares, block);
  const int first_row = (kOfKeys ? place.tile : tiles - 1 - place.tile) * Shape::kRows;
  if (first_row >= place.segment.count) return;
  __shared__ __align__(16) unsigned char shared_tile_bytes[sizeof(Tile)];
  Tile& shared_tile = reinterpret_cast<Tile&>(shared_tile_bytes);
  Tile tile;
  tile.segment = place.segment;
  tile.owner_head = place.head / shares;
  tile.share = place.head % shares;
  tile.first = first_row;
  if (kOfKeys) {
    tile.passing_head = place.head * heads_a_share;
    tile.end = tile.segment.count;
    // Of keys that nobody sees outside the window no query behind the last one's.
    const KeyBias& bias = attention.bias;
    if (kForm == Form::kOutsideWindow && tile.first >= bias.far_keys && bias.window < tile.end - tile.first) {
      tile.end = min(tile.end, tile.first + Shape::kRows - 1 + bias.window);
    }
    tile.steps_a_head = (tile.end - tile.first + Shape::kStep - 1) / Shape::kStep;
    tile.steps = tile.steps_a_head * heads_a_share;
  } else {
    tile.passing_head = place.head / attention.group();
    tile.end = min(tile.segment.count, tile.first + Shape::kRows);
    tile.keys = KeyTiles::of<Shape::kStep, kForm>(attention.bias, tile.first, tile.end);
    tile.steps_a_head = tile.steps = tile.keys.steps;
  }
  const auto data_of = [](ConstRef vectors) { return static_cast<const bf16*>(vectors.data); };
  const bf16 *queries = data_of(attention.queries), *keys = data_of(attention.keys);
  const bf16 *values = data_of(attention.values), *gradients = data_of(args.output_gradient);
  const Operands operands =
      kOfKeys ? Operands{{keys, values}, {queries, gradients}} : Operands{{queries, gradients}, {keys, values}};

  unsigned char* owned = align_panels(unaligned);
  unsigned char* first_tiles = owned + 2 * Shape::kGroups * Shape::kOwnedBytes;
  unsigned char* second_tiles = first_tiles + Shape::kStages * Shape::kTileBytes;
  unsigned char* slopes = second_tiles + Shape::kStages * Shape::kTileBytes;
  if (threadIdx.x == 0) shared_tile = tile;
  if (threadIdx.x == 0) {
    slope_barriers.init(Shape::kGroups * kWarpgroup);
    ring.init(Shape::kGroups * kWarpgroup / 32, false);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    shrink_registers<24>();
    if (threadIdx.x >= 32) return;
    fill<D>(
        ring, tile.segment, passing_heads, tile.steps, {operands.passing[0], first_map, first_tiles},
        {operands.passing[1], second_map, second_tiles},
        [&](int t) { return step_of<kOwner, kForm, Shape::kStep>(tile, t); },
        [&](const Step& step, int i) {
          if constexpr (kOfKeys) {
            const QueryState state =
                i < tile.segment.count ? states[vector_of(tile.segment, passing_heads, step.head, i)] : no_query();
            return Column<2>{state.log_sum, state.mean_slope};
          } else {
            return Column<1>{fmaxf(bias_of(attention, tile.segment, step.head, i), kLeastBias)};
          }
        });
  } else {
    grow_registers<240>();
    const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
    consume<D, kOwner, kForm, kSums>(args, operands, states, of_heads, of_queries, shared_tile, heads,
                                     owned + 2 * group * Shape::kOwnedBytes, first_tiles, second_tiles, slopes, ring,
                                     slope_barriers);
  }
}

// Blocks of keys come first: they take longest.
template <int D, Form kForm, Sums kSums>
__global__ void __launch_bounds__(Shape<D, Owner::kKeys, kSums>::kThreads, 1)
    differentiate(const __grid_constant__ BiasedAttentionBackwardArgs args, const QueryState* states, HeadSums of_heads,
                  QuerySums of_queries, int tiles, unsigned key_blocks, const __grid_constant__ Maps maps) {
  if constexpr (kHopperCode) {
    if (kSums != Sums::kByOwner || blockIdx.x < key_blocks) {
      differentiate_tile<D, Owner::kKeys, kForm, kSums>(args, states, of_heads, of_queries, tiles, blockIdx.x,
                                                        maps.queries, maps.gradients);
    } else if constexpr (kSums == Sums::kByOwner) {
      differentiate_tile<D, Owner::kQueries, kForm, kSums>(args, states, of_heads, of_queries, tiles,
                                                           blockIdx.x - key_blocks, maps.keys, maps.values);
    }
  }
}

// A head's keys, a few a block, each sum in the order of the query heads.
constexpr int kAddingThreads = 256, kAddedKeys = 16;
template <int D>
__global__ void __launch_bounds__(kAddingThreads) add_group(BiasedAttentionBackwardArgs args, HeadSums of_heads) {
  constexpr int kFours = D / 4;
  const PackedAttention& attention = args.attention;
  const Place place(attention, attention.kv_heads, blockIdx.x);
  const int64_t vectors = attention.tokens * attention.kv_heads;
  const int first = place.tile * kAddedKeys, rows = min(kAddedKeys, place.segment.count - first);
  const auto vector = [&](int row) { return vector_of(place.segment, attention.kv_heads, place.head, first + row); };
  const auto add = [&](const float* sums, Ref to, int64_t four) {
    float4 all{};
    for (int share = 0; share < of_heads.count; ++share) {
      const float4 of = reinterpret_cast<const float4*>(sums)[share * vectors * kFours + four];
      all = {all.x + of.x, all.y + of.y, all.z + of.z, all.w + of.w};
    }
    write_pair(to, 4 * four, all.x, all.y);
    write_pair(to, 4 * four + 2, all.z, all.w);
  };
  for (int i = static_cast<int>(threadIdx.x); of_heads.keys && i < rows * kFours; i += kAddingThreads) {
    const int64_t four = vector(i / kFours) * kFours + i % kFours;
    add(of_heads.keys, args.key_gradient, four);
    add(of_heads.values, args.value_gradient, four);
  }
  for (int row = static_cast<int>(threadIdx.x); of_heads.biases && row < rows; row += kAddingThreads) {
    float sum = 0;
    for (int share = 0; share < of_heads.count; ++share) sum += of_heads.biases[share * vectors + vector(row)];
    args.bias_gradient[vector(row)] = sum;
  }
}

// Whether one block for all heads of a group would be at work well after all others have ended, by more than it takes
// to add heads up: it takes four products a pair of tiles, one of queries three, or five alone, were all texts as long
// as the longest. Where nobody asks for queries' gradients sums are the same, so the answer is, too.
bool waits_for_keys(const PackedAttention& attention, int64_t tiles, int rows, Sums sums) {
  const KeyBias& bias = attention.bias;
  const int64_t far = bias.form == Form::kOutsideWindow ? ceil_div(bias.far_keys, rows) : tiles;
  const int64_t seen = std::min(tiles, far + ceil_div(bias.window, rows) + 1);  // tiles that a late one sees
  const int64_t pairs = seen * (seen + 1) / 2 + (tiles - seen) * seen;
  const int of_keys = sums == Sums::kByKeys ? 5 : 4, of_queries = sums == Sums::kByKeys ? 0 : 3;
  const int64_t products = attention.q_heads * attention.segment_count * pairs * (of_keys + of_queries);
  const int64_t longest = attention.group() * (far == 0 ? seen : tiles) * of_keys;
  return attention.group() > 1 && longest * multiprocessors() * 4 > products * 5;
}

template <int D, Form kForm, Sums kSums>
void run(const BiasedAttentionBackwardArgs& args, const QueryState* states) {
  using OfKeys = Shape<D, Owner::kKeys, kSums>;
  using OfQueries = Shape<D, Owner::kQueries, kSums>;
  static_assert(OfKeys::kThreads == OfQueries::kThreads && OfKeys::kRows == OfQueries::kRows);
  const PackedAttention& attention = args.attention;
  const int64_t tiles = ceil_div(attention.max_count, OfKeys::kRows);
  const int64_t shares = waits_for_keys(attention, tiles, OfKeys::kRows, kSums) ? attention.group() : 1;
  const int64_t sums = shares == 1 ? 0 : shares * attention.tokens * attention.kv_heads;
  const Scratch<float> keys(kSums == Sums::kNone ? 0 : sums * D), values(kSums == Sums::kNone ? 0 : sums * D);
  const Scratch<float> biases(args.bias_gradient ? sums : 0);
  const HeadSums of_heads{static_cast<int>(shares), keys.data(), values.data(), biases.data()};
  const int64_t query_values = attention.tokens * attention.q_heads * D;
  Scratch<float> of_queries(OfKeys::kAddsQueries ? query_values : 0);
  const int64_t owners = attention.segment_count * attention.kv_heads, key_blocks = tiles * owners * shares;
  const int64_t query_blocks = kSums == Sums::kByOwner ? tiles * attention.segment_count * attention.q_heads : 0;
  const auto map = [](ConstRef vectors, int heads, int rows) {
    return tensor_map(vectors.as<bf16>(), int64_t{heads} * D, rows);
  };
  const Maps maps{.queries = map(attention.queries, attention.q_heads, OfKeys::kStep),
                  .gradients = map(args.output_gradient, attention.q_heads, OfKeys::kStep),
                  .keys = map(attention.keys, attention.kv_heads, OfQueries::kStep),
                  .values = map(attention.values, attention.kv_heads, OfQueries::kStep)};
  of_queries.fill_zero();
  launch(differentiate<D, kForm, kSums>, key_blocks + query_blocks, OfKeys::kThreads,
         query_blocks == 0 ? OfKeys::kSharedBytes : std::max(OfKeys::kSharedBytes, OfQueries::kSharedBytes), args,
         states, of_heads, of_queries.data(), tiles, key_blocks, maps);
  if constexpr (OfKeys::kAddsQueries) {
    const int64_t heads = attention.segment_count * attention.q_heads;
    launch(scale_queries<D>, ceil_div(attention.max_count, kScaledQueries) * heads, kScalingThreads, 0, args,
           of_queries.data());
  }
  if (shares == 1) return;
  launch(add_group<D>, ceil_div(attention.max_count, kAddedKeys) * owners, kAddingThreads, 0, args, of_heads);
}

template <int D, Form kForm>
void run(const BiasedAttentionBackwardArgs& args, const QueryState* states) {
  if (!args.asks_of_bias_alone()) {
    args.deterministic ? run<D, kForm, Sums::kByOwner>(args, states) : run<D, kForm, Sums::kByKeys>(args, states);
  } else if constexpr (kForm != Form::kNone) {
    run<D, kForm, Sums::kNone>(args, states);
  }
}

}  // namespace

void run_hopper_backward(const BiasedAttentionBackwardArgs& args, const QueryState* states) {
  KV_CHECK(has_warpgroup_products(args.attention));
  with_form(args.attention.bias.form, [&](auto form) {
    if (args.attention.head_dim == 64) {
      run<64, form>(args, states);
    } else {
      run<128, form>(args, states);
    }
  });
}

}  // namespace kv::cuda
