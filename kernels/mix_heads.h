#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace kv {

// Two outputs of attention, mixed by a share a KV head (DuoAttention's training: full attention and that of a window):
//   output[t, h, :] = α · first[t, h, :] + (1 − α) · second[t, h, :],  α = shares[h / group], group = q_heads /
//   kv_heads
struct MixHeadsArgs {
  ConstRef first;                 // [tokens, q_heads, head_dim]
  ConstRef second;                // [tokens, q_heads, head_dim]
  const float* shares = nullptr;  // [kv_heads]
  Ref output;                     // [tokens, q_heads, head_dim]; may alias either
  int64_t tokens = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

// Backward:  first_gradient = α · output_gradient    second_gradient = (1 − α) · output_gradient
//   share_gradient[kv_head] += Σ output_gradient · (first − second), over tokens, the group's heads and dimensions
// Sums do not depend on the number of threads. Either gradient may alias output_gradient, but not the other.
struct MixHeadsBackwardArgs {
  ConstRef first, second;           // [tokens, q_heads, head_dim], as the forward op has read them
  const float* shares = nullptr;    // [kv_heads]
  ConstRef output_gradient;         // [tokens, q_heads, head_dim]
  Ref first_gradient;               // [tokens, q_heads, head_dim]
  Ref second_gradient;              // [tokens, q_heads, head_dim]
  float* share_gradient = nullptr;  // [kv_heads]
  int64_t tokens = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

namespace cpu {
void mix_heads(const MixHeadsArgs& args);
void mix_heads_backward(const MixHeadsBackwardArgs& args);
}  // namespace cpu
namespace cuda {
void mix_heads(const MixHeadsArgs& args);
void mix_heads_backward(const MixHeadsBackwardArgs& args);
}  // namespace cuda

}  // namespace kv
