#pragma once

#include "kernels/cuda/device.cuh"

// Σ_t x_t x_tᵀ in double over the vectors of many lists: query moments and Gram matrices.

namespace kv::cuda {

inline constexpr int kOuterTile = 32;
inline constexpr int kOuterThreads = 256;

inline int64_t outer_blocks(int64_t lists, int dim) {
  const int64_t tiles = ceil_div(dim, kOuterTile);
  return lists * tiles * tiles;
}

// One block a (list, 32 × 32 tile of the matrix), over all vectors of the list in their order.
// Source: count(list), and vector(list, t), a pointer to dim values. Sink: store(list, a, b, sum).
template <class Source, class Sink>
__global__ void __launch_bounds__(kOuterThreads) outer_sums(Source source, Sink sink, int dim) {
  __shared__ double left[kOuterTile][kOuterTile + 1], right[kOuterTile][kOuterTile + 1];
  const int tiles = (dim + kOuterTile - 1) / kOuterTile;
  const int64_t list = blockIdx.x / (tiles * tiles);
  const int first_a = blockIdx.x / tiles % tiles * kOuterTile;
  const int first_b = blockIdx.x % tiles * kOuterTile;
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  const int64_t count = source.count(list);
  double sums[2][2] = {};
  for (int64_t first = 0; first < count; first += kOuterTile) {
    const int vectors = static_cast<int>(min(int64_t{kOuterTile}, count - first));  // of a decode step one
    __syncthreads();
    for (int i = threadIdx.x; i < vectors * kOuterTile; i += kOuterThreads) {
      const int t = i / kOuterTile, d = i % kOuterTile;
      const bf16* vector = source.vector(list, first + t);
      left[t][d] = first_a + d < dim ? to_f32(vector[first_a + d]) : 0.0f;
      right[t][d] = first_b + d < dim ? to_f32(vector[first_b + d]) : 0.0f;
    }
    __syncthreads();
#pragma unroll 4
    for (int t = 0; t < vectors; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) sums[i][j] += left[t][y + 16 * i] * right[t][x + 16 * j];
      }
    }
  }
  if (count == 0) return;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const int a = first_a + y + 16 * i, b = first_b + x + 16 * j;
      if (a < dim && b < dim) sink.store(list, a, b, sums[i][j]);
    }
  }
}

}  // namespace kv::cuda
