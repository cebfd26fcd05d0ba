#include "tests/ref/budget_split.h"

#include <algorithm>
#include <limits>

namespace kv::ref {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Tries the counts of head h and all after it, from the largest down.
void enumerate(const std::vector<LossTable>& heads, int32_t left, double loss, std::vector<int32_t>& counts,
               Split& best) {
  const size_t h = counts.size();
  if (h == heads.size()) {
    if (left == 0 && loss < best.loss) best = {counts, loss};
    return;
  }
  for (int32_t b = std::min<int32_t>(left, static_cast<int32_t>(heads[h].size()) - 1); b >= 0; --b) {
    counts.push_back(b);
    enumerate(heads, left - b, loss + heads[h][static_cast<size_t>(b)], counts, best);
    counts.pop_back();
  }
}

}  // namespace

LossTable loss_table(const std::vector<float>& gains, int32_t least) {
  LossTable losses(gains.size() + 1, 0.0);
  for (size_t b = gains.size(); b-- > 0;) losses[b] = losses[b + 1] + static_cast<double>(gains[b]);
  std::fill(losses.begin(), losses.begin() + least, kNever);
  return losses;
}

LossTable lower_hull(const LossTable& losses) {
  LossTable hull = losses;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i] == kNever) continue;
    for (size_t j = i + 1; j < losses.size(); ++j) {
      for (size_t b = i + 1; b < j; ++b) {
        const double share = static_cast<double>(b - i) / static_cast<double>(j - i);
        hull[b] = std::min(hull[b], losses[i] + share * (losses[j] - losses[i]));
      }
    }
  }
  return hull;
}

Split split_by_enumeration(const std::vector<LossTable>& heads, int32_t total) {
  Split best{.counts = {}, .loss = kNever};
  std::vector<int32_t> counts;
  enumerate(heads, total, 0, counts, best);
  return best;
}

Split split_by_knapsack(const std::vector<LossTable>& heads, int32_t total) {
  const size_t sums = static_cast<size_t>(total) + 1;
  std::vector<std::vector<double>> best(heads.size() + 1, std::vector<double>(sums, kNever));  // of heads h, h + 1, …
  std::vector<std::vector<int32_t>> choice(heads.size(), std::vector<int32_t>(sums, 0));
  best.back()[0] = 0;
  for (size_t h = heads.size(); h-- > 0;) {
    for (size_t sum = 0; sum < sums; ++sum) {
      for (size_t b = 0; b <= sum && b < heads[h].size(); ++b) {
        const double loss = heads[h][b] + best[h + 1][sum - b];
        if (loss > best[h][sum]) continue;
        best[h][sum] = loss;
        choice[h][sum] = static_cast<int32_t>(b);
      }
    }
  }
  Split split{.counts = {}, .loss = best[0].back()};
  size_t left = sums - 1;
  for (const auto& chosen : choice) {
    split.counts.push_back(chosen[left]);
    left -= static_cast<size_t>(chosen[left]);
  }
  return split;
}

}  // namespace kv::ref
