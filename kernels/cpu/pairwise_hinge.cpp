#include "kernels/pairwise_hinge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

// Which scores have been inserted, by rank: how many lie in [0, rank), and their sum. A Fenwick tree.
class RankedSums {
 public:
  explicit RankedSums(size_t ranks) : nodes_(ranks + 1) {}

  void clear() { std::fill(nodes_.begin(), nodes_.end(), Sums{}); }
  void insert(size_t rank, double value) {
    for (size_t at = rank + 1; at < nodes_.size(); at += at & (~at + 1)) {
      ++nodes_[at].count;
      nodes_[at].sum += value;
    }
  }

  struct Sums {
    int64_t count = 0;
    double sum = 0;
  };
  Sums below(size_t rank) const {
    Sums result;
    for (size_t at = rank; at > 0; at &= at - 1) {
      result.count += nodes_[at].count;
      result.sum += nodes_[at].sum;
    }
    return result;
  }

 private:
  std::vector<Sums> nodes_;
};

// One row in O(n log n): slots are taken in order of their targets, and of those taken before, the ones that cost
// something with this score are a range of ranks.
class Row {
 public:
  Row(std::span<const float> targets, std::span<const float> scores, float margin)
      : targets_(targets),
        scores_(scores),
        margin_(margin),
        sums_(scores.size()),
        sorted_(scores.begin(), scores.end()) {
    std::sort(sorted_.begin(), sorted_.end());
    by_target_.resize(scores.size());
    std::iota(by_target_.begin(), by_target_.end(), size_t{0});
    std::sort(by_target_.begin(), by_target_.end(),
              [&](size_t a, size_t b) { return targets[a] != targets[b] ? targets[a] < targets[b] : a < b; });
    // Equal scores share the rank of the first of them.
    for (const float score : scores) {
      ranks_.push_back(static_cast<size_t>(std::lower_bound(sorted_.begin(), sorted_.end(), score) - sorted_.begin()));
    }
    active_pairs_.resize(scores.size());
  }

  void run() {
    // Each as the one that should lie above those of smaller targets, then below those of larger ones.
    for_groups(by_target_.begin(), by_target_.end(), [&](size_t i) {
      const size_t first = partition([&](float other) { return !costs(scores_[i], other); });
      const RankedSums::Sums all = sums_.below(sorted_.size()), free = sums_.below(first);
      const int64_t active = all.count - free.count;
      pairs_ += all.count;
      loss_ += static_cast<double>(active) * (double{margin_} - scores_[i]) + (all.sum - free.sum);
      active_pairs_[i] -= active;
    });
    sums_.clear();
    for_groups(by_target_.rbegin(), by_target_.rend(), [&](size_t j) {
      active_pairs_[j] += sums_.below(partition([&](float other) { return costs(other, scores_[j]); })).count;
    });
  }

  int64_t pairs() const { return pairs_; }
  double loss() const { return pairs_ ? loss_ / static_cast<double>(pairs_) : 0.0; }
  double gradient(size_t slot) const {
    return pairs_ ? static_cast<double>(active_pairs_[slot]) / static_cast<double>(pairs_) : 0.0;
  }

 private:
  bool costs(float above, float below) const { return double{margin_} - (double{above} - below) > 0; }

  // The first rank whose score does not have the property, which smaller scores have.
  template <class Property>
  size_t partition(const Property& property) const {
    return static_cast<size_t>(std::partition_point(sorted_.begin(), sorted_.end(), property) - sorted_.begin());
  }

  // visit() sees the slots of strictly smaller (larger) targets inserted, not those of the same target.
  template <class Iterator, class Visit>
  void for_groups(Iterator begin, Iterator end, const Visit& visit) {
    while (begin != end) {
      const Iterator next = std::find_if(begin, end, [&](size_t i) { return targets_[i] != targets_[*begin]; });
      std::for_each(begin, next, visit);
      for (; begin != next; ++begin) sums_.insert(ranks_[*begin], scores_[*begin]);
    }
  }

  std::span<const float> targets_, scores_;
  float margin_;
  RankedSums sums_;
  std::vector<float> sorted_;
  std::vector<size_t> ranks_, by_target_;
  std::vector<int64_t> active_pairs_;
  int64_t pairs_ = 0;
  double loss_ = 0;
};

bool is_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

void rate_row(const PairwiseHingeArgs& args, int64_t row) {
  const auto count = static_cast<size_t>(std::max(0, args.lengths[row] - args.drop_newest));
  KV_CHECK(count <= 65536);
  const std::span<const float> targets(args.targets.row(row), count), scores(args.scores.row(row), count);
  float* gradient = args.gradient.row(row);
  if (!is_finite(targets) || !is_finite(scores)) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    args.loss[row] = kNan;
    args.pairs[row] = 0;
    std::fill_n(gradient, count, kNan);
    return;
  }
  Row rated(targets, scores, args.margin);
  rated.run();
  args.loss[row] = static_cast<float>(rated.loss());
  args.pairs[row] = static_cast<int32_t>(rated.pairs());
  for (size_t slot = 0; slot < count; ++slot) gradient[slot] = static_cast<float>(rated.gradient(slot));
}

}  // namespace

void pairwise_hinge(const PairwiseHingeArgs& args) {
  parallel_for(args.rows, [&](int64_t row) {
    if (!args.rows_due || args.rows_due[row]) rate_row(args, row);
  });
}

}  // namespace kv::cpu
