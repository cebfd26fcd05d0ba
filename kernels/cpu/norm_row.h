#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cpu/reduce.h"

namespace kv::cpu {

// 1 / sqrt(mean x² + epsilon).
inline float inverse_rms(const float* x, int64_t width, float epsilon) {
  return 1.0f / std::sqrt(dot(x, x, width) / static_cast<float>(width) + epsilon);
}

// One row of rms_norm. `y` may be `x`.
inline void norm_row(const float* x, const float* weight, int64_t width, float epsilon, float* y) {
  const float scale = inverse_rms(x, width, epsilon);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) y[i] = x[i] * scale * weight[i];
}

}  // namespace kv::cpu
