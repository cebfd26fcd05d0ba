#pragma once

#include "kernels/element.h"

namespace kv {

// output[r, i] = input[r, i] · weight[i] / sqrt(mean_i input[r, i]² + epsilon). `output` may alias `input`.
// The norms of every head of queries and keys are rope's (kernels/rope.h).
struct RmsNormArgs {
  ConstRef input;   // [rows, width]
  ConstRef weight;  // [width]
  Ref output;       // [rows, width]
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 1e-6f;
};

// Backward, the weight frozen:
//   s = 1 / sqrt(mean_i input[r, i]² + epsilon)      g_i = output_gradient[r, i] · weight[i]
//   input_gradient[r, i] = s · g_i − s³ · mean_j(g_j · input[r, j]) · input[r, i] (+ addend[r, i])
// `addend` is the gradient that passes by the norm (residual connection). `input_gradient` may alias any of the other
// three of its shape.
struct RmsNormBackwardArgs {
  ConstRef output_gradient;  // [rows, width]
  ConstRef input;            // [rows, width], the norm's
  ConstRef weight;           // [width]
  ConstRef addend = {};      // [rows, width] or null
  Ref input_gradient;        // [rows, width]
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 1e-6f;
};

namespace cpu {
void rms_norm(const RmsNormArgs& args);
void rms_norm_backward(const RmsNormBackwardArgs& args);
}  // namespace cpu
namespace cuda {
void rms_norm(const RmsNormArgs& args);
void rms_norm_backward(const RmsNormBackwardArgs& args);
}  // namespace cuda

}  // namespace kv
