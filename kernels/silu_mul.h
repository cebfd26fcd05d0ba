#pragma once

#include "kernels/element.h"

namespace kv {

// SwiGLU's middle: output[i] = silu(gate[i]) · up[i], silu(x) = x / (1 + e^−x). `output` may alias either input.
struct SiluMulArgs {
  ConstRef gate;  // [count]
  ConstRef up;    // [count]
  Ref output;     // [count]
  int64_t count = 0;
};

// Backward, with σ(x) = 1 / (1 + e^−x), so that silu(x) = x · σ(x):
//   gate_gradient[i] = output_gradient[i] · up[i] · silu'(gate[i])      silu'(x) = σ(x) · (1 + x · σ(−x))
//   up_gradient[i] = output_gradient[i] · silu(gate[i])
// Either gradient may alias any of what is read, but not the other.
struct SiluMulBackwardArgs {
  ConstRef output_gradient;  // [count]
  ConstRef gate;             // [count]
  ConstRef up;               // [count]
  Ref gate_gradient;         // [count]
  Ref up_gradient;           // [count]
  int64_t count = 0;
};

namespace cpu {
void silu_mul(const SiluMulArgs& args);
void silu_mul_backward(const SiluMulBackwardArgs& args);
}  // namespace cpu
namespace cuda {
void silu_mul(const SiluMulArgs& args);
void silu_mul_backward(const SiluMulBackwardArgs& args);
}  // namespace cuda

}  // namespace kv
