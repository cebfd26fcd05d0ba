#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/scan.cuh"

// Selection by radix: the cut of "the largest keys until their weights reach a target", exactly and without a sort.
// Weights are integers, so atomic sums do not depend on their order.

namespace kv::cuda {

// Unsigned integers in the order of the floats; −0 and +0 are one value. NaN is an internal error.
__device__ inline uint32_t ordered(float value, bool may_be_nan = false) {
  KV_DEVICE_CHECK(may_be_nan || value == value);
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// All keys above `key` belong to the selection, and as many of those equal to it as it takes to reach `missing`.
template <class Key, class Weight>
struct Cut {
  Key key;
  Weight missing;
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
  Weight sum = 0;
  // Each lane starts elsewhere, or all would read the same bank.
  for (int b = 0; b < kBinsALane; ++b) sum += bins[top - (b + lane) % kBinsALane];
  const Weight until = warp_sum_until(sum);
  Weight before = until - sum;
  if (before < target && target <= until) {
    int b = top;
    while (before + bins[b] < target) before += bins[b--];
    write(Bin<Weight>{b, before});
  }
}

// Calls visit(j, key(j)) for this thread's candidates. Keys come in batches, or each would wait for the one before.
template <class Key, class KeyOf, class Visit>
__device__ void visit_keys(int64_t count, const KeyOf& key, const Visit& visit) {
  constexpr int kBatch = 8;
  for (int64_t base = threadIdx.x; base < count; base += int64_t{blockDim.x} * kBatch) {
    Key keys[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t j = base + i * int64_t{blockDim.x};
      keys[i] = j < count ? key(j) : 0;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t j = base + i * int64_t{blockDim.x};
      if (j < count) visit(j, keys[i]);
    }
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
    visit_keys<Key>(count, key, [&](int64_t j, Key k) {
      if ((k & mask) == prefix) atomicAdd(&bins[(k >> shift) & digit_mask], weight(j));
    });
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

// Calls select(j) for the candidates of the selection: those above the cut, then the first `quota` of those equal to
// it, counted from the highest j, which is the newest.
template <int kThreads, class Key, class KeyOf, class Select>
__device__ void select_from_newest(int64_t count, Key cut, int64_t quota, const KeyOf& key, const Select& select) {
  constexpr int kItems = 8;  // neighbours of a thread
  for (int64_t end = count; end > 0; end -= kThreads * kItems) {
    const int64_t newest = end - 1 - int64_t{threadIdx.x} * kItems;
    Key keys[kItems];
    int equals = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      keys[i] = newest >= i ? key(newest - i) : 0;
      equals += newest >= i && keys[i] == cut;
    }
    int all_equals = 0;
    int rank = block_sum_before<kThreads>(equals, all_equals);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (newest >= i && (keys[i] > cut || (keys[i] == cut && rank++ < quota))) select(newest - i);
    }
    quota -= all_equals;
  }
}

}  // namespace kv::cuda
