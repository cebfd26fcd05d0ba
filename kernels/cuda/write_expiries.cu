#include "kernels/write_expiries.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// One thread a token and KV head; row: (layer, segment).
__global__ void write_expiries_kernel(WriteExpiriesArgs args, int64_t tiles) {
  let_next_start();
  wait_for_previous();
  const RowTile at = row_tile(tiles, kThreads);
  const PagedView& cache = args.cache;
  const Segment segment = args.segments[at.row % args.segment_count];
  const int64_t pair = at.first + threadIdx.x, layer = at.row / args.segment_count;
  const int64_t i = pair / cache.kv_heads, head = pair % cache.kv_heads;
  if (i >= segment.count) return;
  const int64_t row = layer * (cache.rows / args.layers) + int64_t{segment.sequence} * cache.kv_heads + head;
  args.pool_expires[place_of(cache, row, cache.lengths[row] - segment.count + i)] =
      args.expires[(layer * args.tokens + segment.first_token + i) * cache.kv_heads + head];
}

}  // namespace

void write_expiries(const WriteExpiriesArgs& args) {
  KV_CHECK(args.layers > 0 && args.cache.rows % args.layers == 0);
  const int64_t tiles = ceil_div(args.max_count * args.cache.kv_heads, kThreads);
  launch_early(write_expiries_kernel, args.layers * args.segment_count * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
