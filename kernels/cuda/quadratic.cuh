#pragma once

#include <type_traits>

#include "kernels/cuda/device.cuh"

// xᵀ M x of many bf16 vectors with an f32 matrix. The matrix keeps its f32 digits, so this runs on the FMA units.

namespace kv::cuda {

inline constexpr int kQuadraticVectors = 64;
inline constexpr int kQuadraticThreads = 256;
inline constexpr int kQuadraticSlice = 16;  // rows of the matrix in shared memory at a time

inline size_t quadratic_shared_bytes(int dim) {
  return static_cast<size_t>(dim) * (kQuadraticVectors + 4 + kQuadraticSlice) * sizeof(float);
}

// For a block of 64 vectors: vector(j) is a pointer or null; store(j, xᵀMx + x·bias) is called once a vector with a
// pointer. Thread (y, x) holds vectors 4y … 4y + 3 and columns x, x + 16, … of T = X·M. E: columns a thread.
template <int E, class Vector, class Store>
__device__ void quadratic_forms(const float* matrix, const float* bias, int dim, const Vector& vector,
                                const Store& store) {
  extern __shared__ __align__(16) float quadratic_shared[];
  constexpr int kPitch = kQuadraticVectors + 4;
  float* by_dim = quadratic_shared;      // [dim, kPitch], so that four vectors' values are one load
  float* slice = by_dim + dim * kPitch;  // [kQuadraticSlice, dim]
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  for (int i = threadIdx.x; i < kQuadraticVectors * dim; i += kQuadraticThreads) {
    const int j = i / dim, d = i % dim;
    const bf16* from = vector(j);
    by_dim[d * kPitch + j] = from ? __bfloat162float(from[d]) : 0.0f;
  }
  float turned[4][E] = {};
  if (matrix) {
    for (int first = 0; first < dim; first += kQuadraticSlice) {
      __syncthreads();
      const int rows = min(kQuadraticSlice, dim - first);
      for (int i = threadIdx.x; i < rows * dim; i += kQuadraticThreads) slice[i] = matrix[first * dim + i];
      __syncthreads();
      for (int a = 0; a < rows; ++a) {
        const float4 values = *reinterpret_cast<const float4*>(by_dim + (first + a) * kPitch + 4 * y);
#pragma unroll
        for (int e = 0; e < E; ++e) {
          const int column = x + 16 * e;
          const float m = column < dim ? slice[a * dim + column] : 0.0f;
          turned[0][e] += values.x * m;
          turned[1][e] += values.y * m;
          turned[2][e] += values.z * m;
          turned[3][e] += values.w * m;
        }
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    double sum = 0;
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const int column = x + 16 * e;
      if (column >= dim) continue;
      const double value = by_dim[column * kPitch + 4 * y + k];
      sum += value * turned[k][e];
      if (bias) sum += value * bias[column];
    }
    for (int offset = 1; offset < 16; offset *= 2) sum += __shfl_xor_sync(kWarp, sum, offset);
    if (x == 0 && vector(4 * y + k)) store(4 * y + k, sum);
  }
}

// Calls with an integral constant: columns a thread for vectors of dim values.
template <class Call>
void with_quadratic_columns(int dim, const Call& call) {
  KV_CHECK(dim > 0 && dim <= 256);
  if (dim <= 64) return call(std::integral_constant<int, 4>());
  if (dim <= 128) return call(std::integral_constant<int, 8>());
  return call(std::integral_constant<int, 16>());
}

}  // namespace kv::cuda
