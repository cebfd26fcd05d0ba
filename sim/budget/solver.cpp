#include "sim/budget/solver.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "kernels/error.h"

namespace kv {

namespace {

void check_gains(size_t head, std::span<const float> gains) {
  for (size_t i = 0; i < gains.size(); ++i) {
    if (gains[i] >= 0 && std::isfinite(gains[i])) continue;
    throw UserError(
        fmt::format("budget: gain {} of head {} is {}: expected a finite number of at least 0", i, head, gains[i]));
  }
}

// For each head, how many of its blocks have a larger gain than the one at which a total is reached, and how many have
// at least that gain.
struct Threshold {
  double gain = 0;
  std::vector<size_t> larger;
  std::vector<size_t> at_least;
};

// Bisects over the bits of a double, which order as the non-negative numbers do: 63 steps at most, in each of which a
// head searches only the blocks that are still undecided.
Threshold find_threshold(std::span<const LossHull> hulls, double most_gain, int64_t total) {
  Threshold result{.gain = 0, .larger = std::vector<size_t>(hulls.size(), 0), .at_least = {}};
  for (const LossHull& hull : hulls) result.at_least.push_back(hull.blocks());
  std::vector<size_t> cuts(hulls.size());
  uint64_t low = 0;  // enough is kept
  uint64_t high = std::bit_cast<uint64_t>(most_gain) + 1;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    const auto gain = std::bit_cast<double>(middle);
    int64_t kept = 0;
    for (size_t h = 0; h < hulls.size(); ++h) {
      const auto begin = hulls[h].gains.begin();
      const auto cut = std::partition_point(begin + static_cast<int64_t>(result.larger[h]),
                                            begin + static_cast<int64_t>(result.at_least[h]),
                                            [&](double other_gain) { return other_gain >= gain; });
      cuts[h] = static_cast<size_t>(cut - begin);
      kept += hulls[h].counts[cuts[h]];
    }
    const bool enough = kept >= total;
    (enough ? low : high) = middle;
    (enough ? result.at_least : result.larger).swap(cuts);
  }
  result.gain = std::bit_cast<double>(low);
  return result;
}

}  // namespace

double relative_gap(double loss, double reference) {
  if (loss == reference) return 0;
  return reference == 0 ? std::numeric_limits<double>::infinity() : (loss - reference) / reference;
}

HullSolver::HullSolver(std::span<const HeadGains> heads) : heads_(heads.begin(), heads.end()) {
  hulls_.reserve(heads.size());
  for (size_t h = 0; h < heads.size(); ++h) {
    check_gains(h, heads[h].gains);
    hulls_.push_back(loss_hull(heads[h]));
    least_total_ += hulls_.back().counts.front();
    most_total_ += hulls_.back().counts.back();
    if (hulls_.back().blocks() > 0) most_gain_ = std::max(most_gain_, hulls_.back().gains.front());
  }
}

BudgetSplit HullSolver::at(int64_t total) const {
  if (total < least_total_ || total > most_total_) {
    throw UserError(fmt::format("budget: {} entries over {} heads: expected {} (what always stays) to {} (all)", total,
                                heads_.size(), least_total_, most_total_));
  }
  const Threshold threshold = find_threshold(hulls_, most_gain_, total);
  BudgetSplit split{.slope = threshold.gain};
  int64_t left = total;
  for (size_t h = 0; h < hulls_.size(); ++h) {
    split.counts.push_back(hulls_[h].counts[threshold.larger[h]]);
    left -= split.counts.back();
  }
  double height = 0;  // of the one loss above its hull
  for (size_t h = 0; h < hulls_.size() && left > 0; ++h) {
    const LossHull& hull = hulls_[h];
    const auto first = hull.counts.begin() + static_cast<int64_t>(threshold.larger[h]);
    const auto last = hull.counts.begin() + static_cast<int64_t>(threshold.at_least[h]);
    const auto vertex = std::upper_bound(first, last + 1, *first + left) - 1;
    left -= *vertex - *first;
    split.counts[h] = *vertex;
    if (vertex == last || left == 0) continue;
    const double on_hull =
        hull.losses[static_cast<size_t>(vertex - hull.counts.begin())] - threshold.gain * static_cast<double>(left);
    split.counts[h] += static_cast<int32_t>(left);
    left = 0;
    // A rounding can turn it negative.
    height = std::max(0.0, head_loss(h, split.counts[h]) - on_hull);
  }
  split.loss = loss(split.counts);
  split.bound = std::max(0.0, split.loss - height);
  return split;
}

double HullSolver::loss(std::span<const int32_t> counts) const {
  KV_CHECK(counts.size() == heads_.size());
  double sum = 0;
  for (size_t h = 0; h < heads_.size(); ++h) sum += head_loss(h, counts[h]);
  return sum;
}

double HullSolver::head_loss(size_t head, int32_t count) const {
  const LossHull& hull = hulls_[head];
  KV_CHECK(count >= hull.counts.front() && count <= hull.counts.back());
  const auto vertex = std::lower_bound(hull.counts.begin(), hull.counts.end(), count);
  double loss = hull.losses[static_cast<size_t>(vertex - hull.counts.begin())];
  for (int32_t i = *vertex; i-- > count;) loss += heads_[head].gains[static_cast<size_t>(i)];
  return loss;
}

}  // namespace kv
