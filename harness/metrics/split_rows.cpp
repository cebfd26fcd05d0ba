#include "harness/metrics/split_rows.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/error.h"
#include "sim/budget/exact.h"
#include "sim/budget/solver.h"

namespace kv {

namespace {

// The solver reads the gains of `heads`.
HullSolver solver_over(const std::vector<OrderedHead>& heads) {
  std::vector<HeadGains> gains;
  for (const OrderedHead& head : heads) gains.push_back({.gains = head.gains});
  return HullSolver(gains);
}

// The rows of one removed fraction.
class Point {
 public:
  Point(const SplitGrid& grid, const std::vector<OrderedHead>& heads, const Measured& at, std::vector<Measured>& rows)
      : grid_(grid), heads_(heads), at_(at), rows_(rows) {}

  void add_loss(const char* name, double loss) { add(name).value = loss / grid_.layers; }

  void add_skipped(const char* name, const char* reason) { add(name).skipped = reason; }

  void add_gap(double gap) {
    if (std::isfinite(gap)) {
      add("split_gap_exact").value = gap;
    } else {
      add_skipped("split_gap_exact", "the exact split loses nothing");
    }
  }

  void add_ratios(const char* name, const std::vector<int32_t>& counts) {
    if (!grid_.per_head) return;
    for (size_t h = 0; h < heads_.size(); ++h) {
      Measured& row = add(name);
      row.layer = heads_[h].layer;
      row.head = heads_[h].head;
      row.value = 1 - static_cast<double>(counts[h]) / static_cast<double>(heads_[h].gains.size());
    }
  }

 private:
  Measured& add(const char* name) {
    rows_.push_back(at_);
    rows_.back().metric = name;
    return rows_.back();
  }

  const SplitGrid& grid_;
  const std::vector<OrderedHead>& heads_;
  const Measured& at_;
  std::vector<Measured>& rows_;
};

void add_exact(const HullSolver& solver, int64_t total, double greedy_loss, Point& point) {
  BudgetSplit exact;
  try {
    exact = solve_exact(solver, total);
  } catch (const UserError& error) {
    point.add_skipped("split_loss_exact", error.what());
    point.add_skipped("split_gap_exact", error.what());
    return;
  }
  point.add_loss("split_loss_exact", exact.loss);
  point.add_gap(relative_gap(greedy_loss, exact.loss));
  point.add_ratios("local_ratio_exact", exact.counts);
}

}  // namespace

std::vector<Measured> split_rows(const SplitGrid& grid, const std::vector<OrderedHead>& heads, const Measured& at) {
  std::vector<OrderedHead> sorted = heads;
  for (OrderedHead& head : sorted) std::sort(head.gains.begin(), head.gains.end(), std::greater<>());
  const HullSolver solver = solver_over(heads);
  const HullSolver oracle = solver_over(sorted);
  std::vector<Measured> rows;
  for (int i = 0; i <= grid.points; ++i) {
    Measured place = at;
    place.x = static_cast<double>(i) / grid.points;
    std::vector<int32_t> uniform;
    for (const OrderedHead& head : heads) {
      const auto entries = static_cast<int64_t>(head.gains.size());
      uniform.push_back(static_cast<int32_t>(entries * (grid.points - i) / grid.points));
    }
    const int64_t total = std::accumulate(uniform.begin(), uniform.end(), int64_t{0});
    const BudgetSplit greedy = solver.at(total);
    Point point(grid, heads, place, rows);
    point.add_loss("split_loss_uniform", solver.loss(uniform));
    point.add_loss("split_loss_greedy", greedy.loss);
    point.add_loss("split_loss_bound", greedy.bound);
    point.add_loss("split_loss_oracle_order", solver.loss(oracle.at(total).counts));
    point.add_ratios("local_ratio", greedy.counts);
    if (grid.exact) add_exact(solver, total, greedy.loss, point);
  }
  return rows;
}

}  // namespace kv
