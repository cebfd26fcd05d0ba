#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// Adds this block's pre-RoPE queries at positions >= first_position to the running moments of each (sequence, query
// head): sums[s, h, :] += q, products[s, h, :, :] += q qᵀ (full matrix), f64: covariances are differences of large
// numbers.
struct QueryMomentsArgs {
  ConstRef queries;  // [tokens, q_heads, head_dim], pre-RoPE, after any q-norm
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  int32_t first_position = 0;  // sinks are left out
  int q_heads = 0;
  int head_dim = 0;
  double* sums = nullptr;      // [sequences, q_heads, head_dim]
  double* products = nullptr;  // [sequences, q_heads, head_dim, head_dim]
};

// Expected Attention (Devoto et al. 2025; 002's π3): with μ, Σ of the queries (divided by counts), R̄ = average rotation
// over positions [next_position, next_position + future), μ' = R̄μ, Σ' = R̄ΣR̄ᵀ:
//   u_j = k_j·μ'/√D + k_jᵀΣ'k_j/(2D) for slots whose position >= sinks, p = softmax_j u, mean over the group,
//   scores = (p_j + epsilon)·‖v_j‖₂. Slots of sinks (position < sinks) get the row's largest score + 1
//   (1 in a row of nothing but sinks). counts = 0 means μ = 0, Σ = 0. A rope attention factor is not applied to R̄.
struct ExpectedAttentionArgs {
  PagedView cache;
  const double* sums = nullptr;
  const double* products = nullptr;
  const int32_t* counts = nullptr;         // [sequences], queries in the moments
  const int32_t* next_position = nullptr;  // [sequences], position of the next token
  const float* inv_freq = nullptr;         // [head_dim / 2]
  int q_heads = 0;
  int future = 512;
  int sinks = 4;
  float epsilon = 0.02f;
  bool use_covariance = true;
  const uint8_t* rows_due = nullptr;
  Slots<float> scores;
};

namespace cpu {
void query_moments(const QueryMomentsArgs& args);
void expected_attention(const ExpectedAttentionArgs& args);
}  // namespace cpu
namespace cuda {
void query_moments(const QueryMomentsArgs& args);
void expected_attention(const ExpectedAttentionArgs& args);
}  // namespace cuda

}  // namespace kv
