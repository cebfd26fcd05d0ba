#pragma once

#include <cuda_runtime.h>

namespace kv::cuda {

// 1 / rms of a row, by one over its width, which the host has: a quotient and a root take as many instructions as all
// else, and many registers.
__device__ inline float inverse_rms(float squares, float inverse_width, float epsilon) {
  return rsqrtf(squares * inverse_width + epsilon);
}

}  // namespace kv::cuda
