#include "kernels/blend.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void blend_kernel(BlendArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t slot = at.first + threadIdx.x;
  if (slot >= args.lengths[at.row] - args.drop_newest) return;
  args.output.row(at.row)[slot] = args.weight_a * args.a.row(at.row)[slot] + args.weight_b * args.b.row(at.row)[slot];
}

}  // namespace

void blend(const BlendArgs& args) {
  const int64_t tiles = ceil_div(args.output.pitch, kThreads);
  launch(blend_kernel, args.rows * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
