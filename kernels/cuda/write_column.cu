#include "kernels/write_column.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

__device__ int32_t position_of(const PagedView& cache, int64_t row, int64_t slot) {
  return cache.positions[place_of(cache, row, slot)];
}

// The slot of a position, or the row's length. Where nothing after it was let go, it is `guess`.
__device__ int64_t slot_of(const PagedView& cache, int64_t row, int32_t position, int64_t guess) {
  const int64_t length = cache.lengths[row];
  if (guess >= 0 && position_of(cache, row, guess) == position) return guess;
  int64_t low = 0, high = length;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (position_of(cache, row, middle) < position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < length && position_of(cache, row, low) == position ? low : length;
}

// One block a (segment, KV head), one thread a token at a time: the host does not know how many a segment has.
__global__ void write_column_kernel(WriteColumnArgs args) {
  const PagedView& cache = args.cache;
  const Segment segment = args.segments[blockIdx.x / cache.kv_heads];
  const int64_t head = blockIdx.x % cache.kv_heads, row = int64_t{segment.sequence} * cache.kv_heads + head;
  for (int64_t i = threadIdx.x; i < segment.count; i += kThreads) {
    const int64_t length = cache.lengths[row];
    const int64_t slot =
        slot_of(cache, row, segment.first_position + static_cast<int32_t>(i), length - segment.count + i);
    if (slot == length) continue;
    args.pool_columns[place_of(cache, row, slot) * cache.column_width + args.column] =
        args.values[(segment.first_token + i) * cache.kv_heads + head];
  }
}

}  // namespace

void write_column(const WriteColumnArgs& args) {
  KV_CHECK(args.column >= 0 && args.column < args.cache.column_width);
  launch(write_column_kernel, args.segment_count * args.cache.kv_heads, kThreads, 0, args);
}

}  // namespace kv::cuda
