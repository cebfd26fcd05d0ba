#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/rate_entries.h"

// What the kernels of an entry network share (kernels/rate_entries.h): its parameters, and the hidden layer of a warp's
// entries on the tensor cores. Keys and values are bf16, so that products with weights cut into three bf16 parts are as
// exact as those of f32.

namespace kv::cuda {

inline constexpr int kParts = 3;  // of a weight

__device__ inline float normal_below(float a) { return 0.5f * (1.0f + erff(a * 0.70710678f)); }
__device__ inline float normal_density(float a) { return expf(-0.5f * a * a) * 0.39894228f; }

// Parameters of a head, as they lie one behind the other.
struct Parameters {
  const float* weights;
  const float* bias;
  const float* output_weights;
  const float* output_bias;
};
__device__ inline Parameters parameters_of(const float* all, int inputs, int hidden) {
  const float* bias = all + int64_t{inputs} * hidden;
  return {all, bias, bias + hidden, bias + 2 * hidden};
}

// The next part of what is left of a weight.
__device__ inline bf16 cut_part(float& rest) {
  const bf16 part = __float2bfloat16(rest);
  rest -= __bfloat162float(part);
  return part;
}

// A lane's four rows of its warp's entries are lane / 4 + 8 r; its hidden units, of each tile of 8, lane % 4 · 2 and
// the next.
template <int H>
struct HiddenSums {
  static constexpr int kTiles = H / 8;
  float a[4][kTiles][2];

  __device__ void start(const float* bias) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float of_unit = bias[n * 8 + threadIdx.x % 4 * 2 + e];
#pragma unroll
        for (int r = 0; r < 4; ++r) a[r][n][e] = of_unit;
      }
    }
  }

  // Sixteen inputs: x[r] are a lane's four of each row.
  template <class Fragments>
  __device__ void add_vectors(const uint2 (&x)[4], const Fragments& weights, int step) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t rows[4] = {x[2 * m].x, x[2 * m + 1].x, x[2 * m].y, x[2 * m + 1].y};
        float sums[4] = {a[2 * m][n][0], a[2 * m][n][1], a[2 * m + 1][n][0], a[2 * m + 1][n][1]};
#pragma unroll
        for (int part = kParts - 1; part >= 0; --part) {
          const uint2 w = weights.at(step, n, part, threadIdx.x % 32);
          multiply_add(sums, rows, w.x, w.y);
        }
        a[2 * m][n][0] = sums[0], a[2 * m][n][1] = sums[1];
        a[2 * m + 1][n][0] = sums[2], a[2 * m + 1][n][1] = sums[3];
      }
    }
  }

  // Products of the rows with all parts of the weights, part by part: [M, kParts · H / 8, 4] as HeldRows gives them.
  template <int M>
  __device__ void add_products(const float (&sums)[M][kParts * kTiles][4]) {
    static_assert(M == 2);
#pragma unroll
    for (int part = kParts - 1; part >= 0; --part) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 8; ++e) a[e / 2][n][e % 2] += sums[e / 4][part * kTiles + n][e % 4];
      }
    }
  }

  // One feature of the lane's rows, read by `of`(r).
  template <class FeatureOf>
  __device__ void add_feature_of(const FeatureOf& of, const float* weights) {
    float x[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) x[r] = of(r);
    add_rows(x, weights);
  }

  // `feature` is of the lane's own entry; all lanes of a row take it from there.
  __device__ void add_feature(float feature, const float* weights) {
    float x[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) x[r] = __shfl_sync(kWarp, feature, threadIdx.x % 32 / 4 + 8 * r);
    add_rows(x, weights);
  }

  __device__ void add_rows(const float (&x)[4], const float* weights) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 w = *reinterpret_cast<const float2*>(weights + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r][n][0] += x[r] * w.x, a[r][n][1] += x[r] * w.y;
    }
  }

  // Of row r, without the bias; all lanes of the row get it.
  __device__ float output(int r, const float* output_weights) const {
    float y = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        y += output_weights[n * 8 + threadIdx.x % 4 * 2 + e] * (a[r][n][e] * normal_below(a[r][n][e]));
      }
    }
    y += __shfl_xor_sync(kWarp, y, 1);
    return y + __shfl_xor_sync(kWarp, y, 2);
  }
};

}  // namespace kv::cuda
