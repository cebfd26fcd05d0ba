#include "kernels/draw_order.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// One thread a slot.
__global__ void draw_order_kernel(DrawOrderArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t slot = at.first + threadIdx.x;
  if (slot >= args.cache.lengths[at.row] - args.drop_newest || !is_due(args.rows_due, at.row)) return;
  float* output = args.output.row(at.row) + slot;
  if (args.stays && args.stays.row(at.row)[slot]) {
    *output = kStays;
    return;
  }
  const int64_t sequence = at.row / args.cache.kv_heads;
  const uint32_t head = args.first_head + static_cast<uint32_t>(at.row % args.cache.kv_heads);
  const double u = draw_uniform(args.seed, static_cast<uint32_t>(args.numbers[sequence]), head,
                                static_cast<uint32_t>(args.tokens_seen[sequence]), static_cast<uint32_t>(slot));
  *output = static_cast<float>(args.scores.row(at.row)[slot] + log(-log(u)));
}

}  // namespace

void draw_order(const DrawOrderArgs& args) {
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch(draw_order_kernel, args.cache.rows * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
