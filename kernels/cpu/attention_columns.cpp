#include "kernels/attention_columns.h"

#include <utility>

#include "kernels/check.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void attention_columns_add(const AttentionColumnsAddArgs& args) {
  const PagedView& cache = args.cache;
  const Suffixes& suffixes = args.suffixes;
  const int64_t heads = cache.kv_heads, group = args.group;
  KV_CHECK(cache.column_width >= columns_needed(args) && suffixes.interval > 0);
  parallel_for(args.segment_count * heads, [&](int64_t task) {
    const Segment& segment = args.segments[task / heads];
    if (segment.count == 0 || (args.sequences && !args.sequences[segment.sequence])) return;
    const bool is_early = segment.first_position < suffixes.first;
    const int32_t end = segment.first_position + segment.count;
    const int64_t row = int64_t{segment.sequence} * heads + task % heads;
    for (int64_t slot = 0; slot < cache.lengths[row]; ++slot) {
      float* columns = args.pool_columns + pool_index(cache, row, slot) * cache.column_width;
      for (int64_t h = 0; h < group; ++h) {
        const float sum = args.sums.row(row * group + h)[slot];
        if (is_early) {
          columns[h] += sum;
          columns[group + h] += sum;
          continue;
        }
        columns[2 * group + h] += sum;
        for (int k = 0; k < suffixes.count; ++k) {
          const int32_t come = suffixes.come(k, end);
          if (come <= 0) continue;
          KV_CHECK(args.suffix_sums || segment.count == 1);
          float& newest = columns[(3 + k) * group + h];
          if (come <= segment.count) newest = 0;
          newest += args.suffix_sums ? args.suffix_sums.row((row * suffixes.count + k) * group + h)[slot] : sum;
        }
      }
    }
  });
}

void attention_columns_fold(const AttentionColumnsFoldArgs& args) {
  const PagedView& cache = args.cache;
  const int64_t group = args.group;
  KV_CHECK(cache.column_width >= columns_needed(args) && args.first_plane + planes_written(args) <= args.planes);
  KV_CHECK(args.has_recent || args.suffix_count == 0);
  parallel_for(cache.rows, [&](int64_t row) {
    if (args.rows_due && !args.rows_due[row]) return;
    const bool is_counted = args.rows_counted && args.rows_counted[row];
    const int64_t plane = row * args.planes + args.first_plane;
    for (int64_t slot = 0; slot < cache.lengths[row]; ++slot) {
      float* columns = args.pool_columns + pool_index(cache, row, slot) * cache.column_width;
      for (int64_t h = 0; h < group; ++h) {
        float &cumulative = columns[h], &decayed = columns[group + h];
        const auto feature = [&](int64_t f) -> float& { return args.features.row(plane + f * group + h)[slot]; };
        const int64_t interval = args.suffix_count, all = interval + args.recent_planes;
        for (int64_t k = 0; k < interval; ++k) feature(k) = columns[(3 + k) * group + h];
        const float recent = args.has_recent ? std::exchange(columns[2 * group + h], 0) : feature(interval);
        const float counted = is_counted ? recent : 0;
        cumulative += recent - counted;
        decayed = args.decay * (decayed - counted) + recent;
        for (int64_t copy = interval; copy < all; ++copy) feature(copy) = recent;
        feature(all) = cumulative;
        feature(all + 1) = decayed;
      }
    }
  });
}

}  // namespace kv::cpu
