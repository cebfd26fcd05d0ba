#include "kernels/seen_pairs.h"

#include "kernels/cuda/device.cuh"
#include "kernels/expiry.h"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// One block a (segment, KV head): each thread takes every 256th of the slots that may expire.
__global__ void seen_pairs_kernel(SeenPairsArgs args) {
  const PagedView& cache = args.cache;
  const Segment segment = args.segments[blockIdx.x / cache.kv_heads];
  const int64_t row = int64_t{segment.sequence} * cache.kv_heads + blockIdx.x % cache.kv_heads;
  const int64_t length = cache.lengths[row], before = length - segment.count;
  const int64_t first = cache.expires ? min(max(length - cache.expiring, int64_t{0}), before) : before;
  unsigned long long pairs = threadIdx.x == 0 ? first * segment.count : 0;
  for (int64_t slot = first + threadIdx.x; slot < length; slot += kThreads) {
    const int64_t begin = max(int64_t{0}, slot - before);
    const int32_t expires = cache.expires ? cache.expires[place_of(cache, row, slot)] : kNeverExpires;
    const int64_t left = int64_t{expires} - segment.first_position;
    pairs += max(int64_t{0}, min(int64_t{segment.count}, left) - begin);
  }
  pairs = block_reduce(pairs, 0ULL, Add());
  if (threadIdx.x == 0) args.pairs[row] += static_cast<int64_t>(pairs);
}

}  // namespace

void seen_pairs(const SeenPairsArgs& args) {
  launch(seen_pairs_kernel, args.segment_count * args.cache.kv_heads, kThreads, 0, args);
}

}  // namespace kv::cuda
