#include "kernels/pool.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void pool_kernel(PoolArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t count = args.lengths[at.row / args.vectors_per_row] - args.drop_newest;
  const int64_t slot = at.first + threadIdx.x;
  if (slot >= count) return;
  const float* input = args.input.row(at.row);
  const int64_t half = args.kernel / 2;
  const int64_t first = max(int64_t{0}, slot - half);
  const int64_t end = min(count, slot + half + 1);
  float result;
  if (args.kind == PoolArgs::Kind::kMax) {
    result = input[slot];
    for (int64_t j = first; j < end; ++j) result = input[j] > result ? input[j] : result;
  } else {
    result = 0;
    for (int64_t j = first; j < end; ++j) result += input[j];
    result /= static_cast<float>(args.kernel);
  }
  args.output.row(at.row)[slot] = result;
}

__global__ void group_mean_kernel(GroupMeanArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t slot = at.first + threadIdx.x;
  if (slot >= args.lengths[at.row] - args.drop_newest) return;
  const float* input = args.input.row(at.row * args.group) + slot;
  float sum = 0;
  for (int g = 0; g < args.group; ++g) sum += input[g * args.input.pitch];
  args.output.row(at.row)[slot] = sum / static_cast<float>(args.group);
}

}  // namespace

void pool(const PoolArgs& args) {
  KV_CHECK(args.kernel > 0 && args.kernel % 2 == 1);
  const int64_t tiles = ceil_div(args.output.pitch, kThreads);
  launch(pool_kernel, args.rows * args.vectors_per_row * tiles, kThreads, 0, args, tiles);
}

void group_mean(const GroupMeanArgs& args) {
  const int64_t tiles = ceil_div(args.output.pitch, kThreads);
  launch(group_mean_kernel, args.rows * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
