#pragma once

#include "kernels/cuda/mma.cuh"

// xᵀ M x of many bf16 vectors with an f32 matrix. Three bf16 numbers hold every digit of an f32, so X·M is three
// products on the tensor cores, whose terms are exact; what rounds are the f32 sums.

namespace kv::cuda {

inline constexpr int kQuadraticVectors = 128;
inline constexpr int kQuadraticThreads = 256;
inline constexpr int kQuadraticColumns = 32;  // of the matrix in shared memory at a time
inline constexpr int kQuadraticParts = 3;

template <int D>
constexpr size_t quadratic_shared_bytes() {
  return static_cast<size_t>(D) * (kQuadraticVectors + kQuadraticParts * kQuadraticColumns) * sizeof(bf16);
}

// Columns [first, first + 32) of the matrix, zero beyond dim, as tiles of D rows: the leading digits, the next, the
// last.
template <int D>
__device__ void stage_parts(bf16* parts, const float* matrix, int dim, int first) {
  constexpr int kTile = D * kQuadraticColumns;
  for (int i = threadIdx.x; i < kTile; i += kQuadraticThreads) {
    const int row = i / kQuadraticColumns, column = i % kQuadraticColumns;
    float remainder = row < dim && first + column < dim ? matrix[row * dim + first + column] : 0.0f;
#pragma unroll
    for (int part = 0; part < kQuadraticParts; ++part) {
      const bf16 digits = to_bf16(remainder);
      parts[part * kTile + place<kQuadraticColumns>(row, column)] = digits;
      remainder -= to_f32(digits);
    }
  }
}

// Products of a warp's 16 vectors and these columns.
template <int D>
__device__ void multiply_parts(const HeldRows<D, 1>& vectors, const bf16* parts, int lane, float (&turned)[4][4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) turned[n][0] = turned[n][1] = turned[n][2] = turned[n][3] = 0;
#pragma unroll
  for (int part = kQuadraticParts - 1; part >= 0; --part) {  // the small terms first
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t b[4];
        load_right_by_columns<kQuadraticColumns>(b, parts + part * D * kQuadraticColumns, step * 16, pair, lane);
        multiply_add(turned[2 * pair], vectors.a[0][step], b[0], b[1]);
        multiply_add(turned[2 * pair + 1], vectors.a[0][step], b[2], b[3]);
      }
    }
  }
}

// For a block of 128 vectors: vector(j) is a pointer or null; store(j, xᵀMx + x·bias) is called once a vector with a
// pointer. Without a matrix or a bias its term is left out. dim <= D.
template <int D, class Vector, class Store>
__device__ void quadratic_forms(const float* matrix, const float* bias, int dim, const Vector& vector,
                                const Store& store) {
  extern __shared__ __align__(128) bf16 quadratic_shared[];
  bf16* vectors = quadratic_shared;               // [128, D]
  bf16* parts = vectors + kQuadraticVectors * D;  // [3, D, 32]
  const int lane = threadIdx.x % 32, first_row = static_cast<int>(threadIdx.x) / 32 * 16;
  stage_rows<D>(vectors, kQuadraticVectors, dim, threadIdx.x, kQuadraticThreads, vector);
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  HeldRows<D, 1> held;
  held.load(vectors, first_row, lane);
  double sums[2] = {};  // of rows lane / 4 and lane / 4 + 8
  for (int first = 0; first < dim; first += kQuadraticColumns) {
    float turned[4][4] = {};
    if (matrix) {
      __syncthreads();  // readers of the previous columns are done
      stage_parts<D>(parts, matrix, dim, first);
      __syncthreads();
      multiply_parts<D>(held, parts, lane, turned);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row + lane / 4 + 8 * i;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = first + 8 * n + lane % 4 * 2 + c;
          if (column >= dim) continue;
          const double value = to_f32(vectors[place<D>(row, column)]);
          sums[i] += value * turned[n][2 * i + c];
          if (bias) sums[i] += value * bias[column];
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    for (int offset = 1; offset < 4; offset *= 2) sums[i] += __shfl_xor_sync(kWarp, sums[i], offset);
    const int j = first_row + lane / 4 + 8 * i;
    if (lane % 4 == 0 && vector(j)) store(j, sums[i]);
  }
}

}  // namespace kv::cuda
