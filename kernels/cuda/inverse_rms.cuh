#pragma once

#include <cuda_runtime.h>

namespace kv::cuda {

// 1 / rms of a row, by one over its width, which the host has: a quotient and a root take as many instructions as all
// else, and many registers.
__device__ inline float inverse_rms(float squares, float inverse_width, float epsilon) {
  return rsqrtf(squares * inverse_width + epsilon);
}

// Of a norm on its way back: what a row's two sums, Σ x² and Σ g x, make of a g, the gradient of an output times its
// weight, and an x.
struct NormSlope {
  __device__ NormSlope(float squares, float along, float inverse_width, float epsilon)
      : scale(inverse_rms(squares, inverse_width, epsilon)), pull(scale * scale * scale * (along * inverse_width)) {}
  __device__ float operator()(float g, float x) const { return scale * g - pull * x; }

  float scale, pull;
};

}  // namespace kv::cuda
