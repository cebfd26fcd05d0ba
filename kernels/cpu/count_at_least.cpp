#include "kernels/count_at_least.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/score_order.h"

namespace kv::cpu {

void count_at_least(const CountAtLeastArgs& args) {
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (args.rows_due && !args.rows_due[row]) return;
    const int64_t length = args.cache.lengths[row];
    const int64_t sinks = leading_sinks(args.cache, row, args.sinks);
    const int64_t end = std::max(sinks, length - args.recent);
    const float* scores = args.scores.row(row);
    const auto stays = [&](float score) { return score >= args.threshold; };
    args.counts[row] =
        static_cast<int32_t>(length - (end - sinks) + std::count_if(scores + sinks, scores + end, stays));
  });
}

}  // namespace kv::cpu
