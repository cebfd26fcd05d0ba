#include "kernels/find_bad.h"

#include <algorithm>

#include "kernels/cuda/select_row.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTileSlots = 8 * kThreads;
constexpr int kBlocksAProcessor = 8;

__device__ bool is_bad(float value) { return !isfinite(value); }
__device__ bool is_bad(bf16 value) { return is_bad(to_f32(value)); }

__device__ void lower(uint64_t* first, uint64_t number) {
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  atomicMin(reinterpret_cast<unsigned long long*>(first), static_cast<unsigned long long>(number));
}

// A block a (row, tile of slots).
__global__ void __launch_bounds__(kThreads) find_bad_score_kernel(FindBadScoreArgs args, int64_t tiles) {
  const auto [row, first] = row_tile(tiles, kTileSlots);
  if (!is_due(args.rows_due, row)) return;
  const int64_t length = args.cache.lengths[row];
  if (first >= length) return;
  const Spared spared = spared_of(args.cache, row, args.sinks, args.recent);
  const int64_t end = min(first + kTileSlots, length - spared.recent);
  for (int64_t slot = first + threadIdx.x; slot < end; slot += kThreads) {
    if (slot < spared.sinks) continue;
    const int64_t at = row * args.scores.pitch + slot;
    if (is_bad(args.scores.data[at]) || (args.ties && is_bad(args.ties.data[at]))) {
      lower(args.first, args.number + static_cast<uint64_t>(at));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) find_bad_value_kernel(FindBadValueArgs args) {
  const auto* values = static_cast<const T*>(args.values.data);
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < args.count; i += stride) {
    if (is_bad(values[i])) lower(args.first, args.number + static_cast<uint64_t>(i));
  }
}

}  // namespace

void find_bad_score(const FindBadScoreArgs& args) {
  const int64_t tiles = ceil_div(args.cache.max_length, kTileSlots);
  launch(find_bad_score_kernel, args.cache.rows * tiles, kThreads, 0, args, tiles);
}

void find_bad_value(const FindBadValueArgs& args) {
  const int64_t blocks = std::min(ceil_div(args.count, kThreads), int64_t{kBlocksAProcessor} * multiprocessors());
  KV_CHECK(args.values.dtype == DType::kBF16 || args.values.dtype == DType::kF32);
  launch(args.values.dtype == DType::kBF16 ? find_bad_value_kernel<bf16> : find_bad_value_kernel<float>, blocks,
         kThreads, 0, args);
}

}  // namespace kv::cuda
