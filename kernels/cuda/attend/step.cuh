#pragma once

#include "kernels/cuda/attend/attend.cuh"

// A step of FlashAttention-2's schedule on any card: what a warp does with 16·M rows of queries and kStepKeys keys and
// values, all in shared memory.

namespace kv::cuda {

inline constexpr int kStepKeys = 64;

// What a warp has of its 16·M rows. Tile m's rows lane / 4 and lane / 4 + 8 are the lane's two.
template <int D, int M>
struct Attended {
  float output[M][D / 8][4] = {};
  Softmax state[M][2];

  __device__ Attended() {
#pragma unroll
    for (int m = 0; m < M; ++m) state[m][0] = state[m][1] = {-kInfinity, 0};
  }
};

// The logits of a step: raw products, then, after softmax(), probabilities relative to the largest so far.
template <int M>
using Logits = float[M][kStepKeys / 8][4];

template <int D, int M>
__device__ __forceinline__ void qk(const bf16* query_tile, int first_row, const bf16* keys, int lane,
                                   Logits<M>& logits) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) load_left<D>(a[m], query_tile, first_row + 16 * m, k, lane);
#pragma unroll
    for (int n = 0; n < kStepKeys / 8; n += 2) {
      uint32_t b[4];
      load_right<D>(b, keys, n * 8, k, lane);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add(logits[m][n], a[m], b[0], b[1]);
        multiply_add(logits[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <int D, int M>
__device__ __forceinline__ void softmax(Logits<M>& logits, float scale, Attended<D, M>& attended) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float shrink = online_step(logits[m], half, scale, attended.state[m][half]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        attended.output[m][n][2 * half] *= shrink;
        attended.output[m][n][2 * half + 1] *= shrink;
      }
    }
  }
}

template <int D, int M>
__device__ __forceinline__ void pv(const Logits<M>& logits, const bf16* values, int lane, Attended<D, M>& attended) {
#pragma unroll
  for (int k = 0; k < kStepKeys / 16; ++k) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      a[m][0] = to_bf16_pair(logits[m][2 * k][0], logits[m][2 * k][1]);
      a[m][1] = to_bf16_pair(logits[m][2 * k][2], logits[m][2 * k][3]);
      a[m][2] = to_bf16_pair(logits[m][2 * k + 1][0], logits[m][2 * k + 1][1]);
      a[m][3] = to_bf16_pair(logits[m][2 * k + 1][2], logits[m][2 * k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t b[4];
      load_right_by_columns<D>(b, values, k * 16, n / 2, lane);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add(attended.output[m][n], a[m], b[0], b[1]);
        multiply_add(attended.output[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

}  // namespace kv::cuda
