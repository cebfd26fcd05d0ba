#include "kernels/column_add.h"

#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void column_add(const ColumnAddArgs& args) {
  const PagedView& cache = args.cache;
  const int64_t heads = cache.kv_heads;
  parallel_for(args.segment_count * heads, [&](int64_t task) {
    const Segment& segment = args.segments[task / heads];
    if (segment.count == 0 || (args.sequences && !args.sequences[segment.sequence])) return;
    const int64_t row = int64_t{segment.sequence} * heads + task % heads;
    const float* addend = args.addend.row(row * args.count);
    for_page_runs(cache, row, 0, cache.lengths[row], [&](int64_t page, int64_t place, int64_t slot, int64_t run) {
      float* columns = args.pool_columns + (page * kPageTokens + place) * cache.column_width + args.first;
      for (int64_t i = 0; i < run; ++i) {
        for (int64_t g = 0; g < args.count; ++g)
          columns[i * cache.column_width + g] += addend[g * args.addend.pitch + slot + i];
      }
    });
  });
}

void column_mean(const ColumnMeanArgs& args) {
  const PagedView& cache = args.cache;
  parallel_for(cache.rows, [&](int64_t row) {
    float* scores = args.scores.row(row);
    for_page_runs(cache, row, 0, cache.lengths[row], [&](int64_t page, int64_t place, int64_t slot, int64_t run) {
      const float* columns = cache.columns + (page * kPageTokens + place) * cache.column_width + args.first;
      for (int64_t i = 0; i < run; ++i) {
        float sum = 0;
        for (int64_t g = 0; g < args.count; ++g) sum += columns[i * cache.column_width + g];
        scores[slot + i] = sum / static_cast<float>(args.count);
      }
    });
  });
}

}  // namespace kv::cpu
