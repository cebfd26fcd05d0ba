#pragma once

#include "kernels/cuda/device.cuh"

// Selection by radix: the cut of "the largest keys until their weights reach a target", exactly and without a sort.
// Weights are integers, so atomic sums do not depend on their order.

namespace kv::cuda {

// Unsigned integers in the order of the floats; −0 and +0 are one value. NaN is an internal error.
__device__ inline uint32_t ordered(float value) {
  KV_DEVICE_CHECK(value == value);
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// All keys above `key` belong to the selection, and as many of those equal to it as it takes to reach `rest`.
template <class Key, class Weight>
struct Cut {
  Key key;
  Weight rest;
};

// The bin in which the weights, summed from the top, reach a target.
template <class Weight>
struct Bin {
  int index;
  Weight above;  // weight of the higher bins
};

// 0 < target <= Σ bins must hold. Called by one warp; the bin is handed to write(bin) by the lane that found it.
template <int kBins, class Weight, class Write>
__device__ void find_bin(const Weight* bins, Weight target, const Write& write) {
  constexpr int kBinsALane = kBins / 32;
  // Lane 0 owns the highest bins.
  const int lane = threadIdx.x % 32;
  const int top = kBins - 1 - lane * kBinsALane;
  Weight own = 0;
  // Each lane starts elsewhere, or all would read the same bank.
  for (int b = 0; b < kBinsALane; ++b) own += bins[top - (b + lane) % kBinsALane];
  Weight until = own;
  for (int offset = 1; offset < 32; offset *= 2) {
    const Weight other = __shfl_up_sync(kWarp, until, offset);
    if (lane >= offset) until += other;
  }
  Weight before = until - own;
  if (before < target && target <= until) {
    int b = top;
    while (before + bins[b] < target) before += bins[b--];
    write(Bin<Weight>{b, before});
  }
}

// Histograms of kDigit bits from the top; each pass keeps only the keys that share the digits found so far, and the
// search ends early where a whole bin belongs to the selection. Every thread of the block takes part and gets the
// result; 0 < target <= Σ weights must hold. key(j), weight(j): of candidate j in [0, count).
template <int kDigit, class Key, class Weight, class KeyOf, class WeightOf>
__device__ Cut<Key, Weight> radix_cut(int64_t count, Weight target, const KeyOf& key, const WeightOf& weight) {
  constexpr int kBins = 1 << kDigit;
  __shared__ Weight bins[kBins];
  __shared__ Bin<Weight> chosen;
  Key prefix = 0, mask = 0;
  int bits = sizeof(Key) * 8;
  while (bits > 0) {
    const int digit_bits = min(bits, kDigit);
    const int shift = bits - digit_bits;
    const Key digit_mask = (Key{1} << digit_bits) - 1;
    __syncthreads();
    for (int b = threadIdx.x; b < kBins; b += blockDim.x) bins[b] = 0;
    __syncthreads();
    for (int64_t j = threadIdx.x; j < count; j += blockDim.x) {
      const Key k = key(j);
      if ((k & mask) == prefix) atomicAdd(&bins[(k >> shift) & digit_mask], weight(j));
    }
    __syncthreads();
    if (threadIdx.x < 32) find_bin<kBins>(bins, target, [&](Bin<Weight> bin) { chosen = bin; });
    __syncthreads();
    prefix |= static_cast<Key>(chosen.index) << shift;
    mask |= digit_mask << shift;
    target -= chosen.above;
    if (bins[chosen.index] == target) break;
    bits = shift;
  }
  return {prefix, target};
}

// For each thread the number of lower threads whose flag is set; `total` gets the block's count.
template <int kThreads>
__device__ int rank_in_block(bool flag, int& total) {
  __shared__ int warps[kThreads / 32];
  const int warp = threadIdx.x / 32;
  const unsigned votes = __ballot_sync(kWarp, flag);
  __syncthreads();  // readers of the previous call are done
  if (threadIdx.x % 32 == 0) warps[warp] = __popc(votes);
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    before += w < warp ? warps[w] : 0;
    total += warps[w];
  }
  return before + __popc(votes & ((1u << threadIdx.x % 32) - 1));
}

// Calls select(j) for the candidates of the selection: those above the cut, then the first `quota` of those equal to
// it, counted from the highest j, which is the newest.
template <int kThreads, class Key, class KeyOf, class Select>
__device__ void select_from_newest(int64_t count, Key cut, int64_t quota, const KeyOf& key, const Select& select) {
  for (int64_t end = count; end > 0; end -= kThreads) {
    const int64_t j = end - 1 - threadIdx.x;
    const Key k = j >= 0 ? key(j) : 0;
    const bool equal = j >= 0 && k == cut;
    int equals = 0;
    const int rank = rank_in_block<kThreads>(equal, equals);
    if (j >= 0 && (k > cut || (equal && rank < quota))) select(j);
    quota -= equals;
  }
}

}  // namespace kv::cuda
