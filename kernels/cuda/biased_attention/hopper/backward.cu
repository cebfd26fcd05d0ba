#include "kernels/cuda/biased_attention/hopper/stream.cuh"

// Gradients of attention in training on Hopper, head dimensions 64 and 128. One kernel for both passes: the owner's 64
// rows a warpgroup are the left operands, so that probabilities and slopes go from accumulators to left operands
// without leaving the registers:
//
//                   owned              passing             logits    slopes      sums
//   query gradients queries, gradients keys, values        q · k     dy · v      Σ ds k
//   key gradients   keys, values       queries, gradients  k · q     v · dy      Σ ds q, Σ p dy
//
// A step's sums and the next one's logits are in flight together. Products of slopes come after the sums, because there
// are no registers for both; meanwhile another warpgroup has the tensor cores.

namespace kv::cuda {

namespace {

enum class Owner : uint8_t { kQueries, kKeys };

template <int D, Owner kOwner>
struct Shape {
  static constexpr bool kOfKeys = kOwner == Owner::kKeys;
  static constexpr int kGroups = D == 64 ? 3 : 2;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kStep = 64;
  static constexpr int kStages = 4;
  static constexpr int kThreads = kWarpgroup * (kGroups + 1);
  static constexpr int kPanels = D / kPanelColumns;
  static constexpr int kOwnedBytes = kPanels * kPanelBytes<64>;  // of one tensor and one warpgroup
  static constexpr int kTileBytes = kPanels * kPanelBytes<kStep>;
  static constexpr size_t kSharedBytes = kPanelAlignment + 2 * kGroups * kOwnedBytes + 2 * kStages * kTileBytes;
  using Column = std::conditional_t<kOfKeys, QueryState, float>;
  using Ring = cuda::Ring<kStep, kStages, Column>;
};

// The first and the second of what is owned and of what passes by.
struct Operands {
  const bf16* owned[2];
  const bf16* passing[2];
};

// What a thread block computes. Of keys the queries pass by, head after head of the group, from the block's first key
// on; of queries the keys, from the newest to the oldest. So the first step has masks, whoever owns.
struct Tile {
  Segment segment;
  int owner_head;
  int passing_head;  // the first
  int first;         // owned row
  int end;           // of what passes by
  int steps_a_head;
  int steps;
};

template <Owner kOwner>
__device__ __forceinline__ Step step_of(const Tile& tile, int t, int rows) {
  if (kOwner == Owner::kQueries) return {(tile.steps - 1 - t) * rows, tile.passing_head};
  return {tile.first + t % tile.steps_a_head * rows, tile.passing_head + t / tile.steps_a_head};
}

// What the thread's two rows bring into every pair: of keys their biases, of queries their states.
struct OwnedRows {
  float biases[2];
  QueryState states[2];
};

// Where column n · 8 + c of a thread's pairs lies from its first one, of a row 8 · half below: the difference of i − j.
template <Owner kOwner>
__device__ __forceinline__ constexpr int apart(int n, int e) {
  const int along = n * 8 + e % 2 - e / 2 * 8;
  return kOwner == Owner::kKeys ? along : -along;
}

// What a query does not see. `distance` is i − j of the thread's first pair.
template <Owner kOwner, int N>
__device__ __forceinline__ void mask(float (&x)[N], int distance) {
#pragma unroll
  for (int n = 0; n < N / 4; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (distance + apart<kOwner>(n, e) < 0) x[4 * n + e] = -kInfinity;
    }
  }
}

// Products q · k become probabilities, products dy · v slopes.
template <Owner kOwner, Form kForm, int N, class Column>
__device__ __forceinline__ void to_slopes(float (&x)[N], float (&dp)[N], const Column* columns, const OwnedRows& owned,
                                          const Weights<kForm>& weights, float scale, int lane,
                                          float (&bias_gradients)[2]) {
#pragma unroll
  for (int n = 0; n < N / 4; ++n) {
    Column of[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) of[c] = columns[n * 8 + lane % 4 * 2 + c];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      QueryState query;
      float b;
      if constexpr (kOwner == Owner::kKeys) {
        query = of[e % 2], b = owned.biases[e / 2];
      } else {
        query = owned.states[e / 2], b = of[e % 2];
      }
      const float weight = weights.at(apart<kOwner>(n, e));
      const float from = kForm == Form::kNone ? -query.log_sum : weight * b - query.log_sum;
      const float p = exp2_fast(x[4 * n + e] * scale + from);
      const float slope = p * (dp[4 * n + e] - query.mean_slope);
      x[4 * n + e] = p;
      dp[4 * n + e] = slope;
      if (kOwner == Owner::kKeys && kForm != Form::kNone) bias_gradients[e / 2] += weight * slope;
    }
  }
}

// One of the warpgroups that compute: 64 of the block's rows.
template <int D, Owner kOwner, Form kForm>
__device__ __forceinline__ void consume(const BiasedAttentionBackwardArgs& args, const Operands& operands,
                                        const QueryState* states, const Tile& tile, int heads, unsigned char* owned,
                                        const unsigned char* first_tiles, const unsigned char* second_tiles,
                                        typename Shape<D, kOwner>::Ring& ring) {
  using Shape = Shape<D, kOwner>;
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
  float of_first[D / 2] = {}, of_second[kOfKeys ? D / 2 : 1] = {};
  uint32_t slopes[kStep / 4], weights[kOfKeys ? kStep / 4 : 1];

  const auto release = [&](Barrier& barrier) {
    if (lane == 0) barrier.arrive();
  };
  const auto multiply_first = [&](int stage) {
    multiply_rows<D, 64, kStep>(x, anew(owned), first_tiles + stage * Shape::kTileBytes);
  };
  const auto multiply_second = [&](int stage) {
    multiply_rows<D, 64, kStep>(dp, anew(owned) + Shape::kOwnedBytes, second_tiles + stage * Shape::kTileBytes);
  };
  const auto pin_sums = [&] {
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
    if constexpr (kOfKeys) add_by_columns<kStep>(of_second, weights, second_tiles + stage * Shape::kTileBytes);
    add_by_columns<kStep>(of_first, slopes, first_tiles + stage * Shape::kTileBytes);
    product_commit();
  };
  // Logits become left operands.
  const auto weigh = [&](int first, int stage) {
    const int column = first + lane % 4 * 2, distance = kOfKeys ? column - row : row - column;
    const int least = kOfKeys ? first - (first_row + 63) : first_row - (first + kStep - 1);
    if (least < 0) mask<kOwner>(x, distance);
    to_slopes<kOwner, kForm>(x, dp, ring.columns[stage], rows, Weights<kForm>(attention.bias, distance), scale, lane,
                             bias_gradients);
    if constexpr (kOfKeys) pack(x, weights);
    pack(dp, slopes);
  };

  int first = step_of<kOwner>(tile, 0, kStep).first;
  ring.full[0][0].wait(0);
  ring.full[1][0].wait(0);
  multiply_first(0);
  multiply_second(0);
  product_wait<0>();
  pin(x);
  pin(dp);
  if (!kOfKeys) release(ring.empty[1][0]);
  weigh(first, 0);

  for (int t = 1; t < tile.steps; ++t) {
    const int stage = t % Shape::kStages, last = (t - 1) % Shape::kStages;
    const uint32_t filled = t / Shape::kStages % 2;
    if (kOfKeys) {
      first = first + kStep < tile.end ? first + kStep : tile.first;
    } else {
      first -= kStep;
    }
    add(last);
    ring.full[0][stage].wait(filled);
    pin(x);
    multiply_first(stage);
    product_wait<1>();
    pin_sums();
    release(ring.empty[0][last]);
    if (kOfKeys) release(ring.empty[1][last]);
    ring.full[1][stage].wait(filled);
    pin(dp);
    multiply_second(stage);
    product_wait<0>();
    pin(x);
    pin(dp);
    if (!kOfKeys) release(ring.empty[1][stage]);
    weigh(first, stage);
  }
  add((tile.steps - 1) % Shape::kStages);
  product_wait<0>();
  pin_sums();

  const float factors[2] = {attention.scale, attention.scale};
  write_sums<D>(kOfKeys ? args.key_gradient : args.query_gradient, tile.segment, heads, tile.owner_head, row, lane,
                factors, of_first);
  if constexpr (kOfKeys) {
    const float ones[2] = {1, 1};
    write_sums<D>(args.value_gradient, tile.segment, heads, tile.owner_head, row, lane, ones, of_second);
    if (!args.bias_gradient) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_four_lanes(bias_gradients[half]);
      const int key = row + 8 * half;
      if (lane % 4 == 0 && key < tile.segment.count) {
        args.bias_gradient[vector_of(tile.segment, heads, tile.owner_head, key)] = sum;
      }
    }
  }
}

template <int D, Owner kOwner, Form kForm>
__device__ void differentiate_tile(const BiasedAttentionBackwardArgs& args, const QueryState* states, int tiles,
                                   const CUtensorMap& first_map, const CUtensorMap& second_map) {
  using Shape = Shape<D, kOwner>;
  constexpr bool kOfKeys = Shape::kOfKeys;
  extern __shared__ unsigned char unaligned[];
  __shared__ typename Shape::Ring ring;

  // What takes longest starts first: early keys are seen by the most queries, late queries see the most keys.
  const PackedAttention& attention = args.attention;
  const int heads = kOfKeys ? attention.kv_heads : attention.q_heads;
  const int passing_heads = kOfKeys ? attention.q_heads : attention.kv_heads;
  const Place place(attention, heads);
  const int first_row = (kOfKeys ? place.tile : tiles - 1 - place.tile) * Shape::kRows;
  if (first_row >= place.segment.count) return;
  __shared__ __align__(16) unsigned char shared_tile_bytes[sizeof(Tile)];
  Tile& shared_tile = reinterpret_cast<Tile&>(shared_tile_bytes);
  Tile tile;
  tile.segment = place.segment;
  tile.owner_head = place.head;
  tile.first = first_row;
  if (kOfKeys) {
    tile.passing_head = place.head * attention.group();
    tile.end = tile.segment.count;
    tile.steps_a_head = (tile.end - tile.first + Shape::kStep - 1) / Shape::kStep;
    tile.steps = tile.steps_a_head * attention.group();
  } else {
    tile.passing_head = place.head / attention.group();
    tile.end = min(tile.segment.count, tile.first + Shape::kRows);
    tile.steps_a_head = tile.steps = (tile.end + Shape::kStep - 1) / Shape::kStep;
  }
  const auto data_of = [](ConstRef vectors) { return static_cast<const bf16*>(vectors.data); };
  const bf16 *queries = data_of(attention.queries), *keys = data_of(attention.keys);
  const bf16 *values = data_of(attention.values), *gradients = data_of(args.output_gradient);
  const Operands operands = kOfKeys ? Operands{{keys, values}, {queries, gradients}}
                                    : Operands{{queries, gradients}, {keys, values}};

  unsigned char* owned = align_panels(unaligned);
  unsigned char* first_tiles = owned + 2 * Shape::kGroups * Shape::kOwnedBytes;
  unsigned char* second_tiles = first_tiles + Shape::kStages * Shape::kTileBytes;
  if (threadIdx.x == 0) shared_tile = tile;
  if (threadIdx.x == 0) ring.init(Shape::kGroups * kWarpgroup / 32);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    shrink_registers<Shape::kGroups == 2 ? 24 : 32>();
    if (threadIdx.x >= 32) return;
    fill<D>(
        ring, tile.segment, passing_heads, tile.steps, {operands.passing[0], first_map, first_tiles},
        {operands.passing[1], second_map, second_tiles},
        [&](int t) { return step_of<kOwner>(tile, t, Shape::kStep); },
        [&](const Step& step, int i) {
          if constexpr (kOfKeys) {
            return i < tile.segment.count ? states[vector_of(tile.segment, passing_heads, step.head, i)] : no_query();
          } else {
            return fmaxf(bias_of(attention, tile.segment, step.head, i), kLeastBias);
          }
        });
  } else {
    grow_registers<Shape::kGroups == 2 ? 240 : 160>();
    const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
    consume<D, kOwner, kForm>(args, operands, states, shared_tile, heads, owned + 2 * group * Shape::kOwnedBytes, first_tiles,
                       second_tiles, ring);
  }
}

template <int D, Owner kOwner, Form kForm>
__global__ void __launch_bounds__(Shape<D, kOwner>::kThreads, 1)
    differentiate(const __grid_constant__ BiasedAttentionBackwardArgs args, const QueryState* states, int tiles,
                  const __grid_constant__ CUtensorMap first_map, const __grid_constant__ CUtensorMap second_map) {
  if constexpr (kHopperCode) differentiate_tile<D, kOwner, kForm>(args, states, tiles, first_map, second_map);
}

template <int D, Owner kOwner, Form kForm>
void run(const BiasedAttentionBackwardArgs& args, const QueryState* states) {
  using Shape = Shape<D, kOwner>;
  const PackedAttention& attention = args.attention;
  const int heads = Shape::kOfKeys ? attention.kv_heads : attention.q_heads;
  const int passing_heads = Shape::kOfKeys ? attention.q_heads : attention.kv_heads;
  const int64_t tiles = ceil_div(attention.max_count, Shape::kRows);
  const auto map = [&](ConstRef vectors) {
    return tensor_map(vectors.as<bf16>(), int64_t{passing_heads} * D, Shape::kStep);
  };
  launch(differentiate<D, kOwner, kForm>, tiles * attention.segment_count * heads, Shape::kThreads, Shape::kSharedBytes, args,
         states, tiles, map(Shape::kOfKeys ? attention.queries : attention.keys),
         map(Shape::kOfKeys ? args.output_gradient : attention.values));
}

}  // namespace

void run_hopper_backward(const BiasedAttentionBackwardArgs& args, const QueryState* states) {
  KV_CHECK(has_warpgroup_products(args.attention));
  with_form(args.attention.bias.form, [&](auto form) {
    if (args.attention.head_dim == 64) {
      run<64, Owner::kKeys, form>(args, states);
      run<64, Owner::kQueries, form>(args, states);
    } else {
      run<128, Owner::kKeys, form>(args, states);
      run<128, Owner::kQueries, form>(args, states);
    }
  });
}

}  // namespace kv::cuda
