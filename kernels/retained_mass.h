#pragma once

#include "kernels/paged.h"

namespace kv {

// How much full-cache attention the resident entries of a policy would have carried, and the exact local error. Query n
// is that of position p = positions[n] of sequence s = sequences[n] in the full pass, and attends to the keys [0, p] of
// its sequence there; a key is retained in KV head h if row (s, h) of the policy's cache holds its position.
//   evicted[n, q_head] = 1 − Σ_retained A        (ε of 001 App. A)
//   error[n, q_head]   = ‖o − ô‖₂, ô renormalised over the retained keys
//   cosine[n, q_head]  = cos(o, ô)
//   longest[n, h]      = the largest ‖v‖₂ of the keys that the query attends to (C of 001 Prop. A.1), exact but for one
//                        rounding to f32
// Where nothing is retained ô = 0; the cosine with a zero vector is 0. What stands beyond a sequence's end does not
// matter.
struct RetainedMassArgs {
  ConstRef queries;                    // [sequences, tokens, q_heads, head_dim]
  ConstRef keys;                       // [sequences, tokens, kv_heads, head_dim]
  ConstRef values;                     // [sequences, tokens, kv_heads, head_dim]
  PagedView cache;                     // the policy's; of its pools only the positions are read, each in [0, tokens)
  const int32_t* sequences = nullptr;  // [count], ascending
  const int32_t* positions = nullptr;  // [count]
  int64_t count = 0;
  int64_t tokens = 0;
  int q_heads = 0;
  float scale = 0;
  float* evicted = nullptr;  // [count, q_heads]
  float* error = nullptr;    // [count, q_heads]
  float* cosine = nullptr;   // [count, q_heads]
  float* longest = nullptr;  // [count, kv_heads]
};

namespace cpu {
void retained_mass(const RetainedMassArgs& args);
}
namespace cuda {
void retained_mass(const RetainedMassArgs& args);
}

}  // namespace kv
