#include "kernels/select_top.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/score_order.h"

namespace kv::cpu {

namespace {

// Keeps the `wanted` largest of the candidates [first, end). The key holds score and tie; newer slots win among equals,
// so nothing but the count of keys equal to the last kept one has to be known.
void keep_largest(const SelectTopArgs& args, int64_t row, int64_t first, int64_t end, int64_t wanted, uint8_t* keep) {
  const float *scores = args.scores.row(row), *ties = args.ties ? args.ties.row(row) : nullptr;
  std::vector<uint64_t> keys(end - first);
  for (int64_t slot = first; slot < end; ++slot) {
    keys[slot - first] = ordered(scores, ties, slot, args.may_be_nan);
  }
  if (wanted <= 0) return;
  std::vector<uint64_t> sorted = keys;
  const auto last = sorted.begin() + (wanted - 1);
  std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
  const uint64_t cut = *last;
  int64_t equal = std::count(sorted.begin(), last + 1, cut);
  for (int64_t slot = end - 1; slot >= first; --slot) {
    const uint64_t key = keys[slot - first];
    if (key > cut || (key == cut && equal-- > 0)) keep[slot] = 1;
  }
}

void select_row(const SelectTopArgs& args, int64_t row) {
  const int64_t length = args.cache.lengths[row];
  const int64_t count = args.counts[row];
  KV_CHECK(count >= 0);
  uint8_t* keep = args.keep.row(row);
  if (count >= length) {
    std::fill_n(keep, length, uint8_t{1});
    return;
  }
  std::fill_n(keep, length, uint8_t{0});
  const int64_t protected_sinks = leading_sinks(args.cache, row, args.sinks);
  const int64_t sinks = std::min(count, protected_sinks);
  const int64_t protected_recent = std::min<int64_t>(args.recent, length - protected_sinks);
  const int64_t recent = std::min(count - sinks, protected_recent);
  std::fill_n(keep, sinks, uint8_t{1});
  std::fill_n(keep + length - recent, recent, uint8_t{1});
  keep_largest(args, row, protected_sinks, length - protected_recent, count - sinks - recent, keep);
}

}  // namespace

void select_top(const SelectTopArgs& args) {
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (!args.rows_due || args.rows_due[row]) select_row(args, row);
  });
}

}  // namespace kv::cpu
