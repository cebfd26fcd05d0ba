#include "kernels/unexpired.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void unexpired(const UnexpiredArgs& args) {
  const PagedView& cache = args.cache;
  KV_CHECK(cache.expires && cache.rows % args.layers == 0);
  const int64_t layer_rows = cache.rows / args.layers, tasks = args.segment_count * cache.kv_heads;
  parallel_for(args.layers * tasks, [&](int64_t task) {
    const Segment& segment = args.segments[task % tasks / cache.kv_heads];
    const int64_t row = task / tasks * layer_rows + int64_t{segment.sequence} * cache.kv_heads + task % cache.kv_heads;
    const bool is_due = !args.rows_due || args.rows_due[row] != 0;
    const int64_t length = cache.lengths[row];
    const int64_t first = is_due ? std::max<int64_t>(0, length - cache.expiring) : length;
    const int32_t newest = segment.first_position + segment.count - 1;
    uint8_t* keep = args.keep.row(row);
    std::fill_n(keep, first, uint8_t{1});
    for (int64_t slot = first; slot < length; ++slot) keep[slot] = cache.expires[pool_index(cache, row, slot)] > newest;
  });
}

}  // namespace kv::cpu
