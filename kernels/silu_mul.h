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

namespace cpu {
void silu_mul(const SiluMulArgs& args);
}
namespace cuda {
void silu_mul(const SiluMulArgs& args);
}

}  // namespace kv
