#include "kernels/retention_scores.h"

#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

constexpr float kLeast = std::numeric_limits<float>::min();

// log Σ_{h < horizon} β^h. Of expm1 both differences from 1 keep all their digits however near β is to it, so that
// their quotient needs no series; where they leave the normal range, it is the limit.
float log_sum(float log_retention, float horizon) {
  const float one = std::expm1(log_retention);
  return std::log(one < -kLeast ? std::expm1(horizon * log_retention) / one : horizon);
}

}  // namespace

void retention_scores(const RetentionScoresArgs& args) {
  const PagedView& cache = args.cache;
  KV_CHECK(args.horizon >= 1 && args.column >= 0 && args.column < cache.column_width);
  const auto horizon = static_cast<float>(args.horizon);
  parallel_for(cache.rows, [&](int64_t row) {
    if (args.rows_due && !args.rows_due[row]) return;
    float* scores = args.scores.row(row);
    const int32_t newest = args.tokens_seen[row / cache.kv_heads] - 1 + args.age_offset;
    for_page_runs(cache, row, 0, cache.lengths[row], [&](int64_t page, int64_t place, int64_t slot, int64_t run) {
      const int64_t first = page * kPageTokens + place;
      for (int64_t i = 0; i < run; ++i) {
        const float log_retention = cache.columns[(first + i) * cache.column_width + args.column];
        const auto age = static_cast<float>(newest - cache.positions[first + i]);
        scores[slot + i] = age * log_retention + log_sum(log_retention, horizon);
      }
    });
  });
}

}  // namespace kv::cpu
