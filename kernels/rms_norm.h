#pragma once

#include "kernels/element.h"

namespace kv {

// output[r, i] = input[r, i] · weight[i] / sqrt(mean_i input[r, i]² + epsilon). `output` may alias `input`.
// Per-head q/k norms are the same op with rows = tokens · heads and width = head_dim.
struct RmsNormArgs {
  ConstRef input;   // [rows, width]
  ConstRef weight;  // [width]
  Ref output;       // [rows, width]
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 1e-6f;
};

namespace cpu {
void rms_norm(const RmsNormArgs& args);
}
namespace cuda {
void rms_norm(const RmsNormArgs& args);
}

}  // namespace kv
