#pragma once

#include <cfloat>

#include "kernels/biased_attention.h"
#include "kernels/cuda/attend/attend.cuh"

// Attention in training on CUDA, and what its kernels share. biased_attention.cu picks one of two, by the card and the
// head dimension:
//
//   hopper/   on Hopper, head dimensions 64 and 128: warpgroup products, fed by TMA.
//   any.cu    on any card at any width.
//
// Backward goes over the logits twice in both: once a thread block owns queries and keys pass by, once it owns keys and
// the queries of all heads of the group pass by. So every gradient has one owner and sums of fixed order, and none of
// them goes through memory before it is done, for seven products instead of five. An exception is Hopper's where the
// card would wait for a few owners of keys: heads of a group then have an owner each, and a last kernel adds theirs up.
// Another is Hopper's where sums need no order: owners of keys add to queries' gradients in memory, by five products.

namespace kv::cuda {

inline constexpr int kWidest = 128;                   // head dimension
inline constexpr float kToLog = 0.6931471805599453f;  // log x = log2 x · kToLog

// In the packed tensors, of a segment's i-th token: times head_dim for the vectors.
__device__ inline int64_t vector_of(const Segment& segment, int heads, int head, int i) {
  return (int64_t{segment.first_token} + i) * heads + head;
}

__device__ inline const bf16* row_of(ConstRef vectors, const PackedAttention& attention, int64_t vector) {
  return static_cast<const bf16*>(vectors.data) + vector * attention.head_dim;
}

// b of a key in units of log 2; 0 where there is none. Below the lowest finite number is −∞, of which 0 times is no
// number.
__device__ inline float bias_of(const PackedAttention& attention, const Segment& segment, int kv_head, int key) {
  if (!attention.bias.values || key >= segment.count) return 0;
  const float b = attention.bias.values[vector_of(segment, attention.kv_heads, kv_head, key)] * kToLog2;
  return b < -FLT_MAX ? -FLT_MAX : b;
}

// ∂bias / ∂b at i − j = distance.
__device__ __forceinline__ float bias_weight(const KeyBias& bias, int distance) {
  if (bias.form == KeyBias::Form::kDistance) return static_cast<float>(distance);
  return distance >= bias.window ? 1.0f : 0.0f;
}

__device__ __forceinline__ void write_pair(Ref to, int64_t at, float a, float b) {
  *reinterpret_cast<uint32_t*>(static_cast<bf16*>(to.data) + at) = to_bf16_pair(a, b);
}

__device__ __forceinline__ void write_pair(float* to, int64_t at, float a, float b) {
  *reinterpret_cast<float2*>(to + at) = {a, b};
}

// What the slopes of a query's logits are made of.
struct QueryState {
  float log_sum;     // in units of log 2
  float mean_slope;  // D
};
// A query that is not there has no probabilities.
__device__ inline QueryState no_query() { return {kInfinity, 0}; }

// Forward, and backward from the states of all vectors of queries, [tokens, q_heads].
void run_any_forward(const BiasedAttentionArgs& args);
void run_any_backward(const BiasedAttentionBackwardArgs& args, const QueryState* states);
void run_hopper_forward(const BiasedAttentionArgs& args);  // where has_warpgroup_products()
void run_hopper_backward(const BiasedAttentionBackwardArgs& args, const QueryState* states);

inline bool has_warpgroup_products(const PackedAttention& attention) {
  return compute_capability() == 90 && (attention.head_dim == 64 || attention.head_dim == 128);
}

}  // namespace kv::cuda
