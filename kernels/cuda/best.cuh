#pragma once

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

// The largest of many values, ties to the lower id.
struct Best {
  float value;
  int32_t id;
};

struct Better {
  __device__ Best operator()(Best a, Best b) const {
    return a.value > b.value || (a.value == b.value && a.id < b.id) ? a : b;
  }
};

// All threads of the block take part and get the result.
template <int kThreads>
__device__ Best block_best(Best best) {
  __shared__ float values[kThreads / 32];
  __shared__ int32_t ids[kThreads / 32];
  const Better better;
  for (int offset = 16; offset > 0; offset /= 2) {
    best = better(best, {__shfl_xor_sync(kWarp, best.value, offset), __shfl_xor_sync(kWarp, best.id, offset)});
  }
  if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = best.value, ids[threadIdx.x / 32] = best.id;
  __syncthreads();
  best = {values[0], ids[0]};
  for (int w = 1; w < kThreads / 32; ++w) best = better(best, {values[w], ids[w]});
  return best;
}

template <int kThreads>
__device__ Best best_of_row(const float* values, int64_t count) {
  Best best{-kInfinity, INT32_MAX};
  for (int64_t v = threadIdx.x; v < count; v += kThreads) {
    best = Better()(best, {values[v], static_cast<int32_t>(v)});
  }
  return block_best<kThreads>(best);
}

}  // namespace kv::cuda
