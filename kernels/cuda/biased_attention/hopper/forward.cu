#include "kernels/cuda/biased_attention/hopper/bias_product.cuh"

// Attention in training on Hopper, head dimensions 64 and 128: the schedule of attend/prefill. The products of the next
// keys are in flight with those of the last values, and under both runs the softmax. Key tiles go from the newest to
// the oldest: the masked ones come first. A warpgroup's first step may be all masks, which the softmax allows for.

namespace kv::cuda {

namespace {

template <int D>
struct Shape {
  static constexpr int kGroups = D == 64 ? 3 : 2;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kStep = 128;
  static constexpr int kStages = D == 64 ? 4 : 2;
  static constexpr int kThreads = kWarpgroup * (kGroups + 1);
  static constexpr int kPanels = D / kPanelColumns;
  static constexpr int kQueryBytes = kPanels * kPanelBytes<64>;  // of one warpgroup
  static constexpr int kTileBytes = kPanels * kPanelBytes<kStep>;
  static constexpr size_t kSharedBytes =
      kPanelAlignment + kGroups * kQueryBytes + kStages * (2 * kTileBytes + kBiasBytes<kStep>);
  using Ring = cuda::Ring<kStep, kStages, 1>;  // with biases, as they add to products q · k
};

// What a thread block computes.
struct Tile {
  Segment segment;
  int head;
  int kv_head;
  int first;  // query
  KeyTiles keys;
};

// The softmax of a thread's two rows so far; `sum` is its own share of the row's sum.
struct Rows {
  float largest[2] = {-kInfinity, -kInfinity};  // in units of log 2
  float sum[2] = {0, 0};
};

template <class Weights, int N>
__device__ __forceinline__ void add_biases(float (&x)[N], const float* biases, const Weights& weights, int lane) {
#pragma unroll
  for (int n = 0; n < N / 4; ++n) {
    const float2 of = columns_of(biases, n, lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[4 * n + e] += weights.at(apart<Owner::kQueries>(n, e)) * (e % 2 ? of.y : of.x);
  }
}

// Logits become probabilities relative to the new maximum; `shrink` is what older sums and outputs lose.
template <int N>
__device__ __forceinline__ void softmax(float (&x)[N], float scale, Rows& rows, float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float maxima[2] = {x[2 * half], x[2 * half + 1]};
#pragma unroll
    for (int n = 1; n < N / 4; ++n) {
      maxima[0] = fmaxf(maxima[0], x[4 * n + 2 * half]);
      maxima[1] = fmaxf(maxima[1], x[4 * n + 2 * half + 1]);
    }
    float largest = fmaxf(maxima[0], maxima[1]);
    largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 2));
    largest = fmaxf(largest * scale, rows.largest[half]);
    const float from = largest == -kInfinity ? 0.0f : largest;  // nothing seen yet: −∞ − −∞ is no number
    shrink[half] = exp2_fast(rows.largest[half] - from);
    rows.largest[half] = largest;
    float sum[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < N / 4; ++n) {
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

// One of the warpgroups that compute: 64 queries. Step t's logits and step t − 1's outputs are in flight together.
template <int D, Form kForm>
__device__ __forceinline__ void consume(const BiasedAttentionArgs& args, const Tile& tile, unsigned char* queries,
                                        const unsigned char* key_tiles, const unsigned char* value_tiles,
                                        const unsigned char* bias_tiles, typename Shape<D>::Ring& ring) {
  using Shape = Shape<D>;
  constexpr int kStep = Shape::kStep;
  constexpr bool kHasBias = kForm != Form::kNone;
  const PackedAttention& attention = args.attention;
  const int group = __shfl_sync(kWarp, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const int first_row = tile.first + 64 * group;
  const int row = first_row + thread / 32 * 16 + lane / 4;

  take_rows<D>(queries, static_cast<const bf16*>(attention.queries.data), tile.segment, attention.q_heads, tile.head,
               first_row, thread);
  publish_to_async();
  named_sync(1 + group, kWarpgroup);

  const float scale = attention.scale * kToLog2;
  Rows rows;
  float logits[kStep / 2], output[D / 2] = {}, shrink[2];
  uint32_t weights[kStep / 4], parts[4];
  // i − j of the tile's nearest pair.
  const auto least_of = [&](int first) { return first_row - (first + kStep - 1); };
  const auto bias_is_product = [&](int first) {
    return least_of(first) >= (kForm == Form::kDistance ? 0 : attention.bias.window);
  };
  const auto first_of = [&](int t) { return tile.keys.template first_of<kStep, kForm>(t); };
  const auto multiply_keys = [&](int t, int stage) {
    const int first = first_of(t);
    if constexpr (kHasBias) set_parts<kForm>(parts, row - first, bias_is_product(first), lane);
    multiply_rows<D, 64, kStep>(logits, queries, key_tiles + stage * Shape::kTileBytes);
    if constexpr (kHasBias) add_bias_product<kStep>(logits, parts, bias_tiles + stage * kBiasBytes<kStep>);
    product_commit();
  };
  const auto pin_logits = [&] {
    pin(logits);
    if constexpr (kHasBias) pin(parts);
  };
  const auto add_values = [&](int stage) {
    product_fence();
    add_by_columns<kStep>(output, weights, value_tiles + stage * Shape::kTileBytes);
    product_commit();
  };
  const auto finish_logits = [&](int t, int stage) {
    const int first = first_of(t), distance = row - (first + lane % 4 * 2);
    const bool counts = kForm == Form::kDistance || first_row + 63 - first >= attention.bias.window;
    if (kHasBias && counts && !bias_is_product(first)) {
      add_biases(logits, ring.columns[stage][0], Weights<kForm>(attention.bias, distance), lane);
    }
    if (least_of(first) < 0) mask<Owner::kQueries>(logits, distance);
    ring.empty[0][stage].arrive();
  };

  ring.full[0][0].wait(0);
  pin_logits();
  multiply_keys(0, 0);
  product_wait<0>();
  pin_logits();
  finish_logits(0, 0);
  softmax(logits, scale, rows, shrink);
  pack(logits, weights);

  for (int t = 1; t < tile.keys.steps; ++t) {
    const int stage = t % Shape::kStages, last = (t - 1) % Shape::kStages;
    ring.full[0][stage].wait(t / Shape::kStages % 2);
    pin_logits();
    pin(weights);
    pin(output);
    multiply_keys(t, stage);
    ring.full[1][last].wait((t - 1) / Shape::kStages % 2);
    add_values(last);
    product_wait<1>();
    pin_logits();
    finish_logits(t, stage);
    softmax(logits, scale, rows, shrink);
    compute_now(rows.sum, ring.nowhere);
    product_wait<0>();
    pin(output);
    pin(weights);
    if (lane == 0) ring.empty[1][last].arrive();
#pragma unroll
    for (int i = 0; i < D / 2; ++i) output[i] *= shrink[i / 2 % 2];
    pack(logits, weights);
  }

  const int last = (tile.keys.steps - 1) % Shape::kStages;
  ring.full[1][last].wait((tile.keys.steps - 1) / Shape::kStages % 2);
  pin(output);
  pin(weights);
  add_values(last);
  product_wait<0>();
  pin(output);

  float shares[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = sum_of_four_lanes(rows.sum[half]);
    shares[half] = __fdividef(1.0f, sum);
    const int query = row + 8 * half;
    if (lane % 4 == 0 && query < tile.segment.count) {
      args.log_sums[vector_of(tile.segment, attention.q_heads, tile.head, query)] =
          (rows.largest[half] + log2f(sum)) * kToLog;
    }
  }
  write_sums<D>(args.output, tile.segment, attention.q_heads, tile.head, row, lane, shares, output);
}

template <int D, Form kForm>
__device__ void attend_tile(const BiasedAttentionArgs& args, int tiles, const CUtensorMap& key_map,
                            const CUtensorMap& value_map) {
  using Shape = Shape<D>;
  extern __shared__ unsigned char unaligned[];
  __shared__ typename Shape::Ring ring;

  const PackedAttention& attention = args.attention;
  const Place place(attention, attention.q_heads, blockIdx.x);
  Tile tile;
  tile.segment = place.segment;
  tile.head = place.head;
  tile.kv_head = place.head / attention.group();
  tile.first = (tiles - 1 - place.tile) * Shape::kRows;  // late tiles see the most keys: they start first
  if (tile.first >= tile.segment.count) return;
  tile.keys =
      KeyTiles::of<Shape::kStep, kForm>(attention.bias, tile.first, min(tile.segment.count, tile.first + Shape::kRows));

  unsigned char* queries = align_panels(unaligned);
  unsigned char* key_tiles = queries + Shape::kGroups * Shape::kQueryBytes;
  unsigned char* value_tiles = key_tiles + Shape::kStages * Shape::kTileBytes;
  unsigned char* bias_tiles = value_tiles + Shape::kStages * Shape::kTileBytes;
  constexpr bool kHasBias = kForm != Form::kNone;
  if (threadIdx.x == 0) ring.init(Shape::kGroups * kWarpgroup / 32, kHasBias);
  if constexpr (kHasBias) clear<Shape::kStages * kBiasBytes<Shape::kStep>>(bias_tiles);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    shrink_registers<Shape::kGroups == 2 ? 24 : 32>();
    const auto data_of = [](ConstRef vectors) { return static_cast<const bf16*>(vectors.data); };
    const float scale = attention.scale * kToLog2;
    const auto step_of = [&](int t) { return Step{tile.keys.template first_of<Shape::kStep, kForm>(t), tile.kv_head}; };
    const auto bias_of_key = [&](const Step& step, int key) {
      return __fdividef(fmaxf(bias_of(attention, tile.segment, step.head, key), kLeastBias), scale);
    };
    if (threadIdx.x < 32) {
      fill<D>(ring, tile.segment, attention.kv_heads, tile.keys.steps, {data_of(attention.keys), key_map, key_tiles},
              {data_of(attention.values), value_map, value_tiles}, step_of,
              [&](const Step& step, int key) { return Column<1>{bias_of_key(step, key)}; });
    } else if (kHasBias && threadIdx.x < 64) {
      fill_biases(ring, tile.keys.steps, bias_tiles, step_of, [&](const Step& step, unsigned char* panel, int column) {
        const int key = step.first + column;
        const float b[2] = {bias_of_key(step, key), bias_of_key(step, key + 1)};
        write_factors<kForm>(panel, b, column, static_cast<int>(threadIdx.x) % 32);
      });
    }
  } else {
    grow_registers<Shape::kGroups == 2 ? 240 : 160>();
    const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
    consume<D, kForm>(args, tile, queries + group * Shape::kQueryBytes, key_tiles, value_tiles, bias_tiles, ring);
  }
}

template <int D, Form kForm>
__global__ void __launch_bounds__(Shape<D>::kThreads, 1)
    attend_biased(const __grid_constant__ BiasedAttentionArgs args, int tiles,
                  const __grid_constant__ CUtensorMap key_map, const __grid_constant__ CUtensorMap value_map) {
  if constexpr (kHopperCode) attend_tile<D, kForm>(args, tiles, key_map, value_map);
}

template <int D, Form kForm>
void run(const BiasedAttentionArgs& args) {
  using Shape = Shape<D>;
  const PackedAttention& attention = args.attention;
  KV_CHECK(attention.max_count <= 1 << 24);  // bias_product.cuh
  const int64_t tiles = ceil_div(attention.max_count, Shape::kRows);
  const auto map = [&](ConstRef vectors) {
    return tensor_map(vectors.as<bf16>(), int64_t{attention.kv_heads} * D, Shape::kStep);
  };
  launch(attend_biased<D, kForm>, tiles * attention.segment_count * attention.q_heads, Shape::kThreads,
         Shape::kSharedBytes, args, tiles, map(attention.keys), map(attention.values));
}

}  // namespace

void run_hopper_forward(const BiasedAttentionArgs& args) {
  KV_CHECK(has_warpgroup_products(args.attention));
  with_form(args.attention.bias.form,
            [&](auto form) { args.attention.head_dim == 64 ? run<64, form>(args) : run<128, form>(args); });
}

}  // namespace kv::cuda
