#include "kernels/count_at_least.h"

#include "kernels/cuda/select_row.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// A block a row.
__global__ void __launch_bounds__(kThreads) count_at_least_kernel(CountAtLeastArgs args) {
  const int64_t row = blockIdx.x;
  if (!is_due(args.rows_due, row)) return;
  const int64_t length = args.cache.lengths[row];
  const Spared spared = spared_of(args.cache, row, args.sinks, args.recent);
  const int64_t end = length - spared.recent;
  const float* scores = args.scores.data + row * args.scores.pitch;
  int32_t mine = 0;
  for (int64_t slot = spared.sinks + threadIdx.x; slot < end; slot += kThreads) {
    if (scores[slot] >= args.threshold) ++mine;
  }
  __shared__ int32_t all;
  if (threadIdx.x == 0) all = static_cast<int32_t>(spared.sinks + spared.recent);
  __syncthreads();
  if (mine > 0) atomicAdd(&all, mine);
  __syncthreads();
  if (threadIdx.x == 0) args.counts[row] = all;
}

}  // namespace

void count_at_least(const CountAtLeastArgs& args) { launch(count_at_least_kernel, args.cache.rows, kThreads, 0, args); }

}  // namespace kv::cuda
