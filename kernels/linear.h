#pragma once

#include "kernels/check.h"
#include "kernels/element.h"
#include "kernels/rms_norm.h"

namespace kv {

// output[r, o] = Σ_i input[r, i] · weight[o, i] (+ bias[o]) (+ addend[r, o]).
// Sums are f32. The output is of the activation type or f32, then without bias and addend: logits must not be rounded.
// `addend` may alias `output` (residual connection); input, and another product's, may not.
struct LinearProduct {
  ConstRef weight;       // [out, in], row-major as Hugging Face stores it
  ConstRef bias = {};    // [out] or null
  ConstRef addend = {};  // [rows, out] or null
  Ref output;            // [rows, out]
  int64_t out = 0;
};

// The RMS norm (kernels/rms_norm.h) that an input goes through before it is multiplied.
struct LinearNorm {
  ConstRef weight;  // [in]; null: there is none
  Ref output;       // [rows, in], neither the input nor a product's output or addend; what the products are of
  float epsilon = 1e-6f;
};

// An input's products with several weights, as queries, keys and values are: each the same bits as alone, but the input
// is prepared once, and a step's single row waits once.
struct LinearArgs {
  static constexpr int kMost = 3;
  ConstRef input;  // [rows, in]
  LinearNorm norm = {};
  LinearProduct products[kMost];  // those without outputs are none
  int64_t rows = 0;
  int64_t in = 0;
};

// The norm of the products' input as an op of its own.
inline RmsNormArgs norm_of(const LinearArgs& args) {
  KV_CHECK(args.norm.output.data != args.input.data);
  return {.input = args.input,
          .weight = args.norm.weight,
          .output = args.norm.output,
          .rows = args.rows,
          .width = args.in,
          .epsilon = args.norm.epsilon};
}

// Backward, weight and bias frozen:
//   input_gradient[r, i] = Σ_o output_gradient[r, o] · weight[o, i] (+ addend[r, i])
// Products accumulate in f32. `addend` may alias `input_gradient` (an input that several products read);
// output_gradient may not.
struct LinearBackwardArgs {
  ConstRef output_gradient;  // [rows, out]
  ConstRef weight;           // [out, in]
  ConstRef addend = {};      // [rows, in] or null
  Ref input_gradient;        // [rows, in]
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
};

namespace cpu {
void linear(const LinearArgs& args);
void linear_backward(const LinearBackwardArgs& args);
}  // namespace cpu
namespace cuda {
void linear(const LinearArgs& args);
void linear_backward(const LinearBackwardArgs& args);
}  // namespace cuda

}  // namespace kv
