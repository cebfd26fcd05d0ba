#include "kernels/visibility.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void visibility_kernel(VisibilityArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t slot = at.first + threadIdx.x;
  if (slot >= args.cache.lengths[at.row] || !is_due(args.rows_due, at.row)) return;
  const int32_t seen = args.tokens_seen[at.row / args.cache.kv_heads];
  const int32_t position = args.cache.positions[place_of(args.cache, at.row, slot)];
  KV_DEVICE_CHECK(position < seen);
  args.scores.row(at.row)[slot] /= static_cast<float>(seen - position);
}

}  // namespace

void visibility(const VisibilityArgs& args) {
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch(visibility_kernel, args.cache.rows * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
