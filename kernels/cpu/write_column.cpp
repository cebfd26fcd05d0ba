#include "kernels/write_column.h"

#include "kernels/check.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

// The first slot of a row whose entry's position is no lower, or the row's length.
int64_t first_slot_from(const PagedView& cache, int64_t row, int32_t position) {
  int64_t low = 0, high = cache.lengths[row];
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (cache.positions[pool_index(cache, row, middle)] < position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

void write_column(const WriteColumnArgs& args) {
  const PagedView& cache = args.cache;
  KV_CHECK(args.column >= 0 && args.column < cache.column_width);
  const int64_t heads = cache.kv_heads;
  parallel_for(args.segment_count * heads, [&](int64_t task) {
    const Segment& segment = args.segments[task / heads];
    if (segment.count == 0) return;
    const int64_t head = task % heads, row = int64_t{segment.sequence} * heads + head;
    for (int64_t slot = first_slot_from(cache, row, segment.first_position); slot < cache.lengths[row]; ++slot) {
      const int64_t place = pool_index(cache, row, slot);
      const int64_t i = cache.positions[place] - segment.first_position;
      if (i >= segment.count) return;
      args.pool_columns[place * cache.column_width + args.column] =
          args.values[(segment.first_token + i) * heads + head];
    }
  });
}

}  // namespace kv::cpu
