#pragma once

#include "kernels/paged.h"

namespace kv {

// How much full-cache attention the resident entries of a policy would have carried, and the exact local error:
// query n (position p_n, sequence s_n) attends to the complete keys [0, p_n] of the full pass; a key is retained in KV
// head h if keep[s_n, h, position] is 1 (the caller marks the positions of the query's own block).
//   evicted[n, q_head] = 1 − Σ_retained A        (ε of 001 App. A)
//   error[n, q_head]   = ‖o − ô‖₂, ô renormalised over the retained keys
//   cosine[n, q_head]  = cos(o, ô)
// Where nothing is retained ô = 0; the cosine with a zero vector is 0. One sequence a call.
struct RetainedMassArgs {
  ConstRef queries;                          // [count, q_heads, head_dim]
  ConstRef keys;                             // [tokens, kv_heads, head_dim]
  ConstRef values;                           // [tokens, kv_heads, head_dim]
  const int32_t* query_positions = nullptr;  // [count]
  const uint8_t* keep = nullptr;             // [kv_heads, tokens]
  int64_t count = 0;
  int64_t tokens = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  float scale = 0;
  float* evicted = nullptr;  // [count, q_heads]
  float* error = nullptr;    // [count, q_heads]
  float* cosine = nullptr;   // [count, q_heads]
};

namespace cpu {
void retained_mass(const RetainedMassArgs& args);
}
namespace cuda {
void retained_mass(const RetainedMassArgs& args);
}

}  // namespace kv
