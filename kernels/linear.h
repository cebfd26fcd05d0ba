#pragma once

#include "kernels/element.h"

namespace kv {

// output[r, o] = Σ_i input[r, i] · weight[o, i] (+ bias[o]) (+ addend[r, o]).
// Products accumulate in f32. The output is of the activation type or f32, then without bias and addend: logits must
// not be rounded. `addend` may alias `output` (residual connection); input may not.
struct LinearArgs {
  ConstRef input;        // [rows, in]
  ConstRef weight;       // [out, in], row-major as Hugging Face stores it
  ConstRef bias = {};    // [out] or null
  ConstRef addend = {};  // [rows, out] or null
  Ref output;            // [rows, out]
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
};

namespace cpu {
void linear(const LinearArgs& args);
}
namespace cuda {
void linear(const LinearArgs& args);
}

}  // namespace kv
