#include "kernels/visibility.h"

#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void visibility(const VisibilityArgs& args) {
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (args.rows_due && !args.rows_due[row]) return;
    const int32_t seen = args.tokens_seen[row / args.cache.kv_heads];
    float* scores = args.scores.row(row);
    for_page_runs(args.cache, row, 0, args.cache.lengths[row],
                  [&](int64_t page, int64_t place, int64_t done, int64_t run) {
                    const int32_t* positions = args.cache.positions + page * kPageTokens + place;
                    for (int64_t i = 0; i < run; ++i) {
                      KV_CHECK(positions[i] < seen);
                      scores[done + i] /= static_cast<float>(seen - positions[i]);
                    }
                  });
  });
}

}  // namespace kv::cpu
