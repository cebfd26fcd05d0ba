#include "kernels/cuda/biased_attention/biased_attention.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;

// Vectors of whole pieces of eight values, which kPieces lanes have together.
template <int kPieces>
__global__ void query_states_by_pieces(BiasedAttentionBackwardArgs args, int64_t vectors, QueryState* states) {
  const int64_t piece = blockIdx.x * int64_t{kThreads} + threadIdx.x, vector = piece / kPieces;
  float sum = 0;
  if (vector < vectors) {
    const uint4 output = static_cast<const uint4*>(args.output.data)[piece];
    const uint4 gradient = static_cast<const uint4*>(args.output_gradient.data)[piece];
    const uint32_t pairs[4][2] = {
        {output.x, gradient.x}, {output.y, gradient.y}, {output.z, gradient.z}, {output.w, gradient.w}};
#pragma unroll
    for (const auto& [of_output, of_gradient] : pairs) {
      const float2 a = to_f32_pair(of_output), b = to_f32_pair(of_gradient);
      sum += a.x * b.x + a.y * b.y;
    }
  }
#pragma unroll
  for (int lanes = kPieces / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kWarp, sum, lanes);
  if (vector < vectors && piece % kPieces == 0) states[vector] = {args.log_sums[vector] * kToLog2, sum};
}

// A warp for each vector of the packed tensors, those of no segment among them.
__global__ void query_states(BiasedAttentionBackwardArgs args, int64_t vectors, QueryState* states) {
  const int64_t vector = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32;
  if (vector >= vectors) return;
  const PackedAttention& attention = args.attention;
  const int lane = threadIdx.x % 32;
  float output[kLaneValues], gradient[kLaneValues];
  load_lanes(row_of(args.output, attention, vector), attention.head_dim, lane, output);
  load_lanes(row_of(args.output_gradient, attention, vector), attention.head_dim, lane, gradient);
  float sum = 0;
#pragma unroll
  for (int e = 0; e < kLaneValues; ++e) sum += output[e] * gradient[e];
  sum = warp_reduce(sum, Add());
  if (lane == 0) states[vector] = {args.log_sums[vector] * kToLog2, sum};
}

void check(const PackedAttention& attention) {
  KV_CHECK(attention.kv_heads > 0 && attention.q_heads % attention.kv_heads == 0);
  KV_CHECK(attention.head_dim % 2 == 0 && attention.head_dim <= kWidest);
  const KeyBias& bias = attention.bias;
  KV_CHECK((bias.form == KeyBias::Form::kNone) == (bias.values == nullptr));
  KV_CHECK(bias.form != KeyBias::Form::kOutsideWindow || bias.window >= 1);
  for (const ConstRef& vectors : {attention.queries, attention.keys, attention.values}) {
    check_vectors(vectors.as<bf16>(), attention.head_dim);
  }
}

}  // namespace

void biased_attention(const BiasedAttentionArgs& args) {
  const PackedAttention& attention = args.attention;
  check(attention);
  KV_CHECK(is_aligned(args.output.as<bf16>(), 4));
  if (attention.segment_count == 0 || attention.max_count == 0) return;
  has_warpgroup_products(attention) ? run_hopper_forward(args) : run_any_forward(args);
}

void biased_attention_backward(const BiasedAttentionBackwardArgs& args) {
  const PackedAttention& attention = args.attention;
  check(attention);
  KV_CHECK((attention.bias.form == KeyBias::Form::kNone) == (args.bias_gradient == nullptr));
  for (const ConstRef& vectors : {args.output, args.output_gradient}) {
    check_vectors(vectors.as<bf16>(), attention.head_dim);
  }
  for (const Ref& vectors : {args.query_gradient, args.key_gradient, args.value_gradient}) {
    KV_CHECK(static_cast<bool>(vectors) != args.asks_of_bias_alone());
    KV_CHECK(!vectors || is_aligned(vectors.as<bf16>(), 4));
  }
  if (attention.segment_count == 0 || attention.max_count == 0) return;
  const int64_t vectors = attention.tokens * attention.q_heads;
  const Scratch<QueryState> states(vectors);
  const auto by_pieces = [&](auto kernel, int pieces) {
    launch(kernel, ceil_div(vectors * pieces, kThreads), kThreads, 0, args, vectors, states.data());
  };
  switch (attention.head_dim) {
    case 64:
      by_pieces(query_states_by_pieces<8>, 8);
      break;
    case 128:
      by_pieces(query_states_by_pieces<16>, 16);
      break;
    default:
      by_pieces(query_states, 32);
  }
  has_warpgroup_products(attention) ? run_hopper_backward(args, states.data()) : run_any_backward(args, states.data());
}

}  // namespace kv::cuda
