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

// One row of rms_norm_backward; `more` may be null, and `dx` any of the others that are as wide.
inline void norm_row_backward(const float* dy, const float* x, const float* weight, const float* more, int64_t width,
                              float epsilon, float* dx) {
  const float scale = inverse_rms(x, width, epsilon);
  const float along = sum_of<float>(width, [=](int64_t i) { return dy[i] * weight[i] * x[i]; });
  const float pull = scale * scale * scale * (along / static_cast<float>(width));
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    dx[i] = scale * (dy[i] * weight[i]) - pull * x[i] + (more ? more[i] : 0.0f);
  }
}

}  // namespace kv::cpu
