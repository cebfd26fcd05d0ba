#include "kernels/write_expiries.h"

#include "kernels/check.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void write_expiries(const WriteExpiriesArgs& args) {
  const PagedView& cache = args.cache;
  KV_CHECK(args.layers > 0 && cache.rows % args.layers == 0);
  const int64_t layer_rows = cache.rows / args.layers, tasks = args.segment_count * cache.kv_heads;
  parallel_for(args.layers * tasks, [&](int64_t task) {
    const Segment& segment = args.segments[task % tasks / cache.kv_heads];
    const int64_t layer = task / tasks, head = task % cache.kv_heads;
    const int64_t row = layer * layer_rows + int64_t{segment.sequence} * cache.kv_heads + head;
    const int64_t first_slot = cache.lengths[row] - segment.count;
    for (int64_t i = 0; i < segment.count; ++i) {
      args.pool_expires[pool_index(cache, row, first_slot + i)] =
          args.expires[(layer * args.tokens + segment.first_token + i) * cache.kv_heads + head];
    }
  });
}

}  // namespace kv::cpu
