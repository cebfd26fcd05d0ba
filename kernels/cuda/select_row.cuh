#pragma once

#include "kernels/cuda/radix.cuh"

// One row's selection by a thread block, in the order of kernels/select_top.h.

namespace kv::cuda {

inline constexpr int kSelectThreads = 512;
inline constexpr int kSelectDigit = 11;  // 2,048 bins: the scores of one power of two still fall into many

// The entries that a selection spares: the `sinks` oldest and the `recent` newest of a row.
struct Spared {
  int64_t sinks;
  int64_t recent;
};

// Every thread of the block takes part and gets the result.
__device__ inline Spared spared_of(const PagedView& cache, int64_t row, int32_t sinks, int32_t recent) {
  __shared__ int64_t leading;
  const int64_t length = cache.lengths[row];
  if (threadIdx.x == 0) {
    // Positions ascend from 0 or more, so the sinks lead and lie in the first `sinks` slots: bisection.
    int64_t low = 0, high = min(length, int64_t{sinks});
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (cache.positions[place_of(cache, row, middle)] < sinks) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    leading = low;
  }
  __syncthreads();
  return {leading, min(int64_t{recent}, length - leading)};
}

// The order of an entry: its score's, with the tie's below it where there are ties.
template <class Key>
struct KeyOf {
  const float* scores;
  const float* ties;
  bool may_be_nan = false;
  __device__ Key operator()(int64_t j) const {
    if constexpr (sizeof(Key) == 8) {
      return Key{ordered(scores[j], may_be_nan)} << 32 | ordered(ties[j], may_be_nan);
    } else {
      return ordered(scores[j], may_be_nan);
    }
  }
};

// keep[slot] = 1 for the `count` entries that stay, else 0. `key` is of slot 0.
template <class Key>
__device__ void select_row(int64_t length, int64_t count, Spared spared, KeyOf<Key> key, uint8_t* keep) {
  if (count >= length) {
    for (int64_t slot = threadIdx.x; slot < length; slot += kSelectThreads) keep[slot] = 1;
    return;
  }
  const int64_t sinks = min(count, spared.sinks);
  const int64_t recent = min(count - sinks, spared.recent);
  const int64_t wanted = count - sinks - recent;
  for (int64_t slot = threadIdx.x; slot < length; slot += kSelectThreads) {
    keep[slot] = slot < sinks || slot >= length - recent;
  }
  const int64_t candidates = length - spared.recent - spared.sinks;
  if (wanted <= 0 || candidates <= 0) return;
  key.scores += spared.sinks;
  if (key.ties) key.ties += spared.sinks;
  const Cut<Key, unsigned> cut = radix_cut<kSelectDigit, Key, unsigned>(candidates, static_cast<unsigned>(wanted), key,
                                                                        [](int64_t) { return 1u; });
  __syncthreads();  // the zeros that other threads wrote come first
  select_from_newest<kSelectThreads>(candidates, cut.key, cut.missing, key,
                                     [&](int64_t j) { keep[spared.sinks + j] = 1; });
}

}  // namespace kv::cuda
