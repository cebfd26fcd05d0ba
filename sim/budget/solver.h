#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/budget/hull.h"

namespace kv {

// How many entries each head keeps.
struct BudgetSplit {
  std::vector<int32_t> counts;  // [heads]
  double loss = 0;              // Σ_h L_h(counts[h])
  double bound = 0;             // the hulls' loss at the same total: no split loses less
  double slope = 0;             // the hulls' gain of one more entry there (λ of the Lagrangian)
};

// (loss − reference) / reference: how much worse a split is than another, or than its bound. 0 where both are 0, +inf
// where only the reference is.
double relative_gap(double loss, double reference);

// Divides a budget over heads (002 Sec. 4.2, Eqs. 9 and 10): the entries of largest hull gain, over all heads, are
// kept. Prepared once for any number of totals. A block is taken whole before another of equal gain is opened, so at
// most one head ends inside a block, and only that head's L lies above its hull: loss − bound is at most that height.
// Blocks of equal gain: the lower head first. What a heap over the heads' next blocks would give, found by bisection on
// the gain, so a total costs O(heads · (64 + log blocks)), and neither heap nor sorted list is needed.
//
// The ablation "without the optimality gap" (002 Table 3) divides by the oracle's order: the same solver over gains
// that are sorted in descending order.
class HullSolver {
 public:
  // O(entries) time and memory. The gains must outlive the solver. UserError where a gain is
  // negative or not finite. Requires 0 <= least <= entries.
  explicit HullSolver(std::span<const HeadGains> heads);

  // Counts whose sum is `total` exactly. UserError unless total is within [least_total(), most_total()].
  BudgetSplit at(int64_t total) const;

  // Σ_h L_h(counts[h]), for any other way to divide a budget. Requires least <= count <= entries of every head.
  double loss(std::span<const int32_t> counts) const;

  std::span<const HeadGains> heads() const { return heads_; }
  std::span<const LossHull> hulls() const { return hulls_; }
  int64_t least_total() const { return least_total_; }
  int64_t most_total() const { return most_total_; }

 private:
  double head_loss(size_t head, int32_t count) const;

  std::vector<HeadGains> heads_;
  std::vector<LossHull> hulls_;  // [heads]
  int64_t least_total_ = 0;
  int64_t most_total_ = 0;
  double most_gain_ = 0;
};

}  // namespace kv
