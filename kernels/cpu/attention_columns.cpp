#include "kernels/attention_columns.h"

#include "kernels/check.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void attention_columns_add(const AttentionColumnsAddArgs& args) {
  const PagedView& cache = args.cache;
  const int64_t heads = cache.kv_heads, group = args.group;
  KV_CHECK(cache.column_width >= 3 * group);
  parallel_for(args.segment_count * heads, [&](int64_t task) {
    const Segment& segment = args.segments[task / heads];
    if (segment.count == 0) return;
    const bool is_early = segment.first_position < args.early_tokens;
    const int64_t row = int64_t{segment.sequence} * heads + task % heads;
    for (int64_t slot = 0; slot < cache.lengths[row]; ++slot) {
      float* columns = args.pool_columns + pool_index(cache, row, slot) * cache.column_width;
      for (int64_t h = 0; h < group; ++h) {
        const float sum = args.sums.row(row * group + h)[slot];
        if (is_early) {
          columns[h] += sum;
          columns[group + h] += sum;
        } else {
          columns[2 * group + h] += sum;
        }
      }
    }
  });
}

void attention_columns_fold(const AttentionColumnsFoldArgs& args) {
  const PagedView& cache = args.cache;
  const int64_t group = args.group;
  KV_CHECK(cache.column_width >= 3 * group && args.first_plane + 3 * group <= args.planes);
  parallel_for(cache.rows, [&](int64_t row) {
    if (args.rows_due && !args.rows_due[row]) return;
    const int64_t plane = row * args.planes + args.first_plane;
    for (int64_t slot = 0; slot < cache.lengths[row]; ++slot) {
      float* columns = args.pool_columns + pool_index(cache, row, slot) * cache.column_width;
      for (int64_t h = 0; h < group; ++h) {
        float &cumulative = columns[h], &decayed = columns[group + h], &recent = columns[2 * group + h];
        cumulative += recent;
        decayed = args.decay * decayed + recent;
        args.features.row(plane + h)[slot] = recent;
        args.features.row(plane + group + h)[slot] = cumulative;
        args.features.row(plane + 2 * group + h)[slot] = decayed;
        recent = 0;
      }
    }
  });
}

}  // namespace kv::cpu
