#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/paged.h"

// What every CUDA op needs on the device: reductions of fixed order, the paged cache's addresses, vectors over a warp.

namespace kv::cuda {

inline constexpr unsigned kWarp = 0xffffffffu;
inline constexpr float kInfinity = __builtin_huge_valf();

// For kernels that launch_early() starts. Cards before Hopper start kernels one after the other anyhow.
// Before it waits a kernel may ask the L2 cache for what it will read, and may read two things: a model's weights
// and rope's frequencies, which no step writes, and segments, positions, lengths and page tables. Whoever writes those,
// or weights, lets nobody start before its end, and has_settled() is the last that its threads do. Every kernel waits,
// in all its blocks: whoever waits for it relies on all that came before.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" :::);
#endif
}
// What this thread has written is in the L2 cache before anybody starts who does not wait. Such a reader's own L1 cache
// is taken to be empty when it starts, as it is where a kernel starts after the end of another; CUDA promises it after
// the wait alone.
__device__ inline void has_settled() { __threadfence(); }

struct Add {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// All lanes get the result.
template <class T, class Op>
__device__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = op(value, __shfl_xor_sync(kWarp, value, offset));
  return value;
}

// All threads get the result; every thread of the block takes part. Whole warps only.
template <class T, class Op>
__device__ T block_reduce(T value, T identity, Op op) {
  __shared__ T partial[32];
  const int lane = threadIdx.x % 32;
  value = warp_reduce(value, op);
  __syncthreads();  // the previous call's readers are done
  if (lane == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_reduce(lane < static_cast<int>(blockDim.x / 32) ? partial[lane] : identity, op);
}

__device__ inline bool is_due(const uint8_t* rows_due, int64_t row) { return !rows_due || rows_due[row]; }

// Index of a slot's entry in the pools: multiply by head_dim or column_width for the vector pools.
__device__ inline int64_t place_of(const PagedView& cache, int64_t row, int64_t slot) {
  const auto at = static_cast<uint32_t>(slot);  // slots fit 32 bits, and unsigned ones divide by shifting
  const int32_t page = cache.page_table[row * cache.max_pages + at / kPageTokens];
  return int64_t{page} * kPageTokens + at % kPageTokens;
}

__device__ inline const bf16* key_of(const PagedView& cache, int64_t row, int64_t slot) {
  return static_cast<const bf16*>(cache.keys.data) + place_of(cache, row, slot) * cache.head_dim;
}

__device__ inline const bf16* value_of(const PagedView& cache, int64_t row, int64_t slot) {
  return static_cast<const bf16*>(cache.values.data) + place_of(cache, row, slot) * cache.head_dim;
}

// What kernels take for granted about a cache.
inline void check_cache(const PagedView& cache) {
  KV_CHECK(cache.keys.dtype == DType::kBF16 && cache.values.dtype == DType::kBF16);
  KV_CHECK(cache.head_dim > 0 && cache.head_dim <= 256);
  KV_CHECK(cache.kv_heads > 0 && cache.rows % cache.kv_heads == 0);
}

// Vectors of a width that is a multiple of eight are read in 16-byte words.
inline void check_vectors(const bf16* data, int dim) { KV_CHECK(dim % 8 != 0 || is_aligned(data, 16)); }

// A flat grid over (row, tile of slots): as many tiles a row as the longest row has.
struct RowTile {
  int64_t row;
  int64_t first;
};
__device__ inline RowTile row_tile(int64_t tiles, int tile_slots) {
  return {blockIdx.x / tiles, blockIdx.x % tiles * tile_slots};
}

// A vector of up to 256 values spread over a warp, eight a lane; lanes hold neighbouring values where the width allows
// one wide load, else every 32nd.
inline constexpr int kLaneValues = 8;

__device__ inline bool is_packed(int dim) { return dim == 64 || dim == 128; }

// Which value of the vector x[e] of this lane is; may lie beyond dim.
__device__ inline int lane_index(int dim, int lane, int e) {
  if (!is_packed(dim)) return lane + 32 * e;
  return e < dim / 32 ? lane * (dim / 32) + e : dim;
}

__device__ inline void load_lanes(const bf16* vector, int dim, int lane, float (&x)[kLaneValues]) {
#pragma unroll
  for (int e = 0; e < kLaneValues; ++e) x[e] = 0;
  if (dim == 128) {
    const uint2 raw = *reinterpret_cast<const uint2*>(vector + lane * 4);
    const float2 low = to_f32_pair(raw.x);
    const float2 high = to_f32_pair(raw.y);
    x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
  } else if (dim == 64) {
    const float2 both = to_f32_pair(*reinterpret_cast<const uint32_t*>(vector + lane * 2));
    x[0] = both.x, x[1] = both.y;
  } else {
#pragma unroll
    for (int e = 0; e < kLaneValues; ++e) {
      const int d = lane + 32 * e;
      if (d < dim) x[e] = to_f32(vector[d]);
    }
  }
}

// logits[h] = Σ_d key[d] · queries[h · dim + d], one thread a key, queries as f32 in shared memory.
template <int H>
__device__ void dots(const bf16* key, const float* queries, int dim, float (&sums)[H]) {
#pragma unroll
  for (int h = 0; h < H; ++h) sums[h] = 0;
  int d = 0;
  if (dim % 8 == 0) {
    for (; d < dim; d += 8) {
      const uint4 raw = *reinterpret_cast<const uint4*>(key + d);
      const auto* pairs = reinterpret_cast<const uint32_t*>(&raw);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 k = to_f32_pair(pairs[e]);
#pragma unroll
        for (int h = 0; h < H; ++h) {
          sums[h] += k.x * queries[h * dim + d + 2 * e] + k.y * queries[h * dim + d + 2 * e + 1];
        }
      }
    }
  }
  for (; d < dim; ++d) {
    const float k = to_f32(key[d]);
#pragma unroll
    for (int h = 0; h < H; ++h) sums[h] += k * queries[h * dim + d];
  }
}

}  // namespace kv::cuda
