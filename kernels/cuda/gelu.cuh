#pragma once

#include "kernels/cuda/mma.cuh"

namespace kv::cuda {

// Φ(−size) of the standard normal distribution, for size >= 0, without a branch or a quotient: 2 to a polynomial that
// is minimax in what it does to Φ on 0 <= size <= 6, where Φ is off by 1.5e-8, a quarter of a rounding of 1. From there
// on Φ(−6) = 1e-9 counts, of NaN, too.
__device__ inline float normal_tail(float size) {
  size = fminf(size, 6.0f);
  float p = -2.7720494e-6f;
  p = __fmaf_rn(p, size, 3.862075e-5f);
  p = __fmaf_rn(p, size, -1.825476e-4f);
  p = __fmaf_rn(p, size, -1.4587013e-4f);
  p = __fmaf_rn(p, size, 7.075472e-3f);
  p = __fmaf_rn(p, size, -5.2505028e-2f);
  p = __fmaf_rn(p, size, -0.4592049f);
  p = __fmaf_rn(p, size, -1.1511058f);
  p = __fmaf_rn(p, size, -1.0f);
  return exp2_fast(p);
}

// The larger of a number and 0, and NaN of NaN.
__device__ inline float above_zero(float a) {
  float larger;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(larger) : "f"(a));
  return larger;
}

// a · Φ(a) = max(a, 0) − |a| · Φ(−|a|).
__device__ inline float gelu(float a) {
  const float size = fminf(fabsf(a), 6.0f);
  return __fmaf_rn(-size, normal_tail(size), above_zero(a));
}

}  // namespace kv::cuda
