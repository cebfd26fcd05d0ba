#include "kernels/page_bounds.h"

#include <algorithm>

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;

// One block a page; row: (segment, KV head), or without segments the row.
__global__ void page_bounds_kernel(PageBoundsArgs args, bf16* bounds, int64_t pages) {
  const PagedView& cache = args.cache;
  int64_t row = blockIdx.x / pages, first_slot = 0;
  if (!args.segments) {
    first_slot = max(int64_t{0}, cache.lengths[row] - args.newest);
  } else {
    const Segment segment = args.segments[row / cache.kv_heads];
    row = int64_t{segment.sequence} * cache.kv_heads + row % cache.kv_heads;
    if (segment.count == 0) return;
    first_slot = cache.lengths[row] - segment.count;
  }
  const int64_t page = first_slot / kPageTokens + blockIdx.x % pages;
  const int64_t length = cache.lengths[row], first = page * kPageTokens;
  if (first >= length || !is_due(args.rows_due, row)) return;
  const int slots = static_cast<int>(min(length - first, int64_t{kPageTokens}));
  const int64_t place = place_of(cache, row, first);
  const bf16* keys = static_cast<const bf16*>(cache.keys.data) + place * cache.head_dim;
  bf16* low = bounds + place / kPageTokens * 2 * cache.head_dim;
  for (int d = threadIdx.x; d < cache.head_dim; d += kThreads) {
    float least = to_f32(keys[d]), most = least;
    for (int slot = 1; slot < slots; ++slot) {
      const float key = to_f32(keys[slot * cache.head_dim + d]);
      least = fminf(least, key);
      most = fmaxf(most, key);
    }
    low[d] = to_bf16(least);
    low[cache.head_dim + d] = to_bf16(most);
  }
}

}  // namespace

void page_bounds(const PageBoundsArgs& args) {
  const PagedView& cache = args.cache;
  KV_CHECK(cache.bounds.data);
  // Of so many slots that begin within a page.
  const int64_t slots = (args.segments ? args.max_count : std::min(args.newest, cache.max_length)) + kPageTokens;
  const int64_t pages = ceil_div(slots, int64_t{kPageTokens});
  const int64_t rows = args.segments ? args.segment_count * cache.kv_heads : cache.rows;
  launch(page_bounds_kernel, rows * pages, kThreads, 0, args, args.pool_bounds.as<bf16>(), pages);
}

}  // namespace kv::cuda
