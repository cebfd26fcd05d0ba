#include "kernels/page_bounds.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

void bound_page(const PagedView& cache, int64_t row, int64_t page, float* bounds) {
  const int64_t dim = cache.head_dim, first = page * kPageTokens;
  const int64_t end = std::min<int64_t>(cache.lengths[row], first + kPageTokens);
  float* low = bounds + int64_t{cache.page_table[row * cache.max_pages + page]} * 2 * dim;
  float* high = low + dim;
  for (int64_t slot = first; slot < end; ++slot) {
    const float* key = cache.keys.as<float>() + pool_index(cache, row, slot) * dim;
    for (int64_t d = 0; d < dim; ++d) {
      low[d] = slot == first ? key[d] : std::min(low[d], key[d]);
      high[d] = slot == first ? key[d] : std::max(high[d], key[d]);
    }
  }
}

void bound_row(const PageBoundsArgs& args, int64_t row, int64_t first_slot) {
  if (args.rows_due && !args.rows_due[row]) return;
  for (int64_t page = first_slot / kPageTokens; page * kPageTokens < args.cache.lengths[row]; ++page) {
    bound_page(args.cache, row, page, args.pool_bounds.as<float>());
  }
}

}  // namespace

void page_bounds(const PageBoundsArgs& args) {
  const PagedView& cache = args.cache;
  KV_CHECK(cache.bounds.data);
  if (!args.segments) {
    parallel_for(cache.rows,
                 [&](int64_t row) { bound_row(args, row, std::max<int64_t>(0, cache.lengths[row] - args.newest)); });
    return;
  }
  parallel_for(args.segment_count * cache.kv_heads, [&](int64_t task) {
    const Segment& segment = args.segments[task / cache.kv_heads];
    const int64_t row = int64_t{segment.sequence} * cache.kv_heads + task % cache.kv_heads;
    if (segment.count > 0) bound_row(args, row, cache.lengths[row] - segment.count);
  });
}

}  // namespace kv::cpu
