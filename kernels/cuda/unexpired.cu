#include "kernels/unexpired.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// One thread a slot; row: (layer, segment, KV head).
__global__ void unexpired_kernel(UnexpiredArgs args, int64_t tiles) {
  let_next_start();
  wait_for_previous();
  const RowTile at = row_tile(tiles, kThreads);
  const PagedView& cache = args.cache;
  const int64_t of_layer = args.segment_count * cache.kv_heads;
  const Segment segment = args.segments[at.row % of_layer / cache.kv_heads];
  const int64_t row = at.row / of_layer * (cache.rows / args.layers) + int64_t{segment.sequence} * cache.kv_heads +
                      at.row % cache.kv_heads;
  const int64_t slot = at.first + threadIdx.x, length = cache.lengths[row];
  if (slot >= length) return;
  const bool may_have_expired = is_due(args.rows_due, row) && slot >= length - cache.expiring;
  args.keep.row(row)[slot] =
      !may_have_expired || cache.expires[place_of(cache, row, slot)] > segment.first_position + segment.count - 1;
}

}  // namespace

void unexpired(const UnexpiredArgs& args) {
  KV_CHECK(args.cache.expires && args.cache.rows % args.layers == 0);
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch_early(unexpired_kernel, args.layers * args.segment_count * args.cache.kv_heads * tiles, kThreads, 0, args,
               tiles);
}

}  // namespace kv::cuda
