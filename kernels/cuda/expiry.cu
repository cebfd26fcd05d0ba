#include "kernels/expiry.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// One thread a token and KV head; row: (layer, segment).
__global__ void expiry_kernel(ExpiryArgs args, int64_t tiles) {
  let_next_start();
  wait_for_previous();
  const RowTile at = row_tile(tiles, kThreads);
  const Segment segment = args.segments[at.row % args.segment_count];
  const int64_t pair = at.first + threadIdx.x, layer = at.row / args.segment_count;
  const int64_t i = pair / args.kv_heads, head = pair % args.kv_heads;
  if (i >= segment.count) return;
  args.expires[args.place(segment, layer, i, head)] = expiry_of(args, segment, layer, i, head);
}

}  // namespace

void expiry(const ExpiryArgs& args) {
  KV_CHECK(args.window >= 1);
  const int64_t tiles = ceil_div(args.max_count * args.kv_heads, kThreads);
  launch_early(expiry_kernel, args.layers * args.segment_count * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
