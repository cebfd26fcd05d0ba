#include "kernels/find_bad.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/score_order.h"

namespace kv::cpu {

namespace {

constexpr int64_t kBlock = 1 << 16;  // values of a task

// The first of values [first, end) that is bad; `end` where none is. Nearly always none is: a look at all at once, and
// at each only where that finds something.
int64_t first_bad(const float* values, int64_t first, int64_t end) {
  int bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t i = first; i < end; ++i)
    bad |= static_cast<int>(!(std::fabs(values[i]) <= std::numeric_limits<float>::max()));
  if (bad == 0) return end;
  return std::find_if(values + first, values + end, [](float value) { return !std::isfinite(value); }) - values;
}

void lower(uint64_t* first, const std::vector<uint64_t>& found) {
  for (const uint64_t number : found) *first = std::min(*first, number);
}

}  // namespace

void find_bad_score(const FindBadScoreArgs& args) {
  std::vector<uint64_t> found(static_cast<size_t>(args.cache.rows), kNothingBad);
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (args.rows_due && !args.rows_due[row]) return;
    const int64_t length = args.cache.lengths[row];
    const int64_t sinks = leading_sinks(args.cache, row, args.sinks);
    const int64_t end = std::max(sinks, length - args.recent);
    int64_t slot = first_bad(args.scores.row(row), sinks, end);
    if (args.ties) slot = std::min(slot, first_bad(args.ties.row(row), sinks, end));
    if (slot < end) found[row] = args.number + static_cast<uint64_t>(row * args.scores.pitch + slot);
  });
  lower(args.first, found);
}

void find_bad_value(const FindBadValueArgs& args) {
  const auto* values = args.values.as<float>();
  std::vector<uint64_t> found(static_cast<size_t>((args.count + kBlock - 1) / kBlock), kNothingBad);
  parallel_blocks(args.count, kBlock, [&](int64_t first, int64_t end) {
    const int64_t at = first_bad(values, first, end);
    if (at < end) found[first / kBlock] = args.number + static_cast<uint64_t>(at);
  });
  lower(args.first, found);
}

}  // namespace kv::cpu
