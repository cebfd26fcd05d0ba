#include "kernels/select_top.h"

#include "kernels/cuda/radix.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kDigit = 11;  // 2,048 bins: the scores of one power of two still fall into many

template <class Key>
struct KeyOf {
  const float* scores;
  const float* ties;
  __device__ Key operator()(int64_t j) const {
    if constexpr (sizeof(Key) == 8) {
      return Key{ordered(scores[j])} << 32 | ordered(ties[j]);
    } else {
      return ordered(scores[j]);
    }
  }
};

// One block a row. Key: the score's order, with the tie's below it where there are ties.
template <class Key>
__global__ void __launch_bounds__(kThreads) select_top_kernel(SelectTopArgs args) {
  __shared__ int64_t leading_sinks;
  const int64_t row = blockIdx.x;
  if (!is_due(args.rows_due, row)) return;
  const int64_t length = args.cache.lengths[row];
  const int64_t count = args.counts[row];
  KV_DEVICE_CHECK(count >= 0);
  uint8_t* keep = args.keep + row * args.pitch;
  if (count >= length) {
    for (int64_t slot = threadIdx.x; slot < length; slot += kThreads) keep[slot] = 1;
    return;
  }
  if (threadIdx.x == 0) {
    // Positions ascend, so the sinks lead; their number is found by bisection.
    int64_t low = 0, high = length;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (args.cache.positions[place_of(args.cache, row, middle)] < args.sinks) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    leading_sinks = low;
  }
  __syncthreads();
  const int64_t protected_sinks = leading_sinks;
  const int64_t sinks = min(count, protected_sinks);
  const int64_t protected_recent = min(int64_t{args.recent}, length - protected_sinks);
  const int64_t recent = min(count - sinks, protected_recent);
  const int64_t wanted = count - sinks - recent;
  for (int64_t slot = threadIdx.x; slot < length; slot += kThreads)
    keep[slot] = slot < sinks || slot >= length - recent;
  const int64_t candidates = length - protected_recent - protected_sinks;
  if (wanted <= 0 || candidates <= 0) return;
  const int64_t first = row * args.pitch + protected_sinks;
  const KeyOf<Key> key{args.scores + first, args.ties ? args.ties + first : nullptr};
  const Cut<Key, unsigned> cut =
      radix_cut<kDigit, Key, unsigned>(candidates, static_cast<unsigned>(wanted), key, [](int64_t) { return 1u; });
  __syncthreads();  // the zeros that other threads wrote come first
  select_from_newest<kThreads>(candidates, cut.key, cut.rest, key, [&](int64_t j) { keep[protected_sinks + j] = 1; });
}

}  // namespace

void select_top(const SelectTopArgs& args) {
  launch(args.ties ? select_top_kernel<uint64_t> : select_top_kernel<uint32_t>, args.cache.rows, kThreads, 0, args);
}

}  // namespace kv::cuda
