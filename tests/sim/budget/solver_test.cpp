#include "sim/budget/solver.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "kernels/error.h"
#include "tests/ref/budget_split.h"
#include "tests/support/budget_problems.h"

namespace kv {
namespace {

using ref::BudgetProblem;
using Counts = std::vector<int32_t>;

int64_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// Hull gains 5, 2.5, 2.5 | 4, 3, 1: 5, 4, 3 first, then the pair of head 0, then 1.
TEST(BudgetSolver, TakesTheLargestHullGains) {
  const BudgetProblem problem{.gains = {{5, 1, 4}, {4, 3, 1}}};
  const HullSolver solver(problem.heads());
  EXPECT_EQ(solver.at(0).counts, (Counts{0, 0}));
  EXPECT_EQ(solver.at(1).counts, (Counts{1, 0}));
  EXPECT_EQ(solver.at(3).counts, (Counts{1, 2}));
  EXPECT_EQ(solver.at(5).counts, (Counts{3, 2}));
  EXPECT_EQ(solver.at(6).counts, (Counts{3, 3}));
}

// At 4 head 0 is inside its pair [1, 4]: L = 4 + 1, the hull has 2.5 + 1.
TEST(BudgetSolver, ReportsLossAndBound) {
  const BudgetProblem problem{.gains = {{5, 1, 4}, {4, 3, 1}}};
  const HullSolver solver(problem.heads());
  const BudgetSplit inside = solver.at(4);
  EXPECT_EQ(inside.counts, (Counts{2, 2}));
  EXPECT_EQ(inside.loss, 5);
  EXPECT_EQ(inside.bound, 3.5);
  EXPECT_EQ(inside.slope, 2.5);
  const BudgetSplit vertex = solver.at(5);
  EXPECT_EQ(vertex.loss, 1);
  EXPECT_EQ(vertex.bound, 1);
  EXPECT_EQ(solver.loss(Counts{1, 3}), 5);
}

// Both heads pool to 2, 2, 2. The second is not opened before the first is full.
TEST(BudgetSolver, FillsABlockBeforeItOpensAnEqualOne) {
  const BudgetProblem problem{.gains = {{1, 2, 3}, {1, 2, 3}}};
  const HullSolver solver(problem.heads());
  EXPECT_EQ(solver.at(2).counts, (Counts{2, 0}));
  EXPECT_EQ(solver.at(3).counts, (Counts{3, 0}));
  EXPECT_EQ(solver.at(4).counts, (Counts{3, 1}));
}

TEST(BudgetSolver, LowerHeadsComeFirstAmongEqualGains) {
  const BudgetProblem problem{.gains = {{1, 1}, {1, 1}, {1, 1}}};
  EXPECT_EQ(HullSolver(problem.heads()).at(3).counts, (Counts{2, 1, 0}));
}

// Nothing but zeros: no gain is larger than another, and the sum is still exact.
TEST(BudgetSolver, DividesHeadsWithoutImportance) {
  const BudgetProblem problem{.gains = {{0, -0.0f}, {}, {0, 0, 0}}};
  const BudgetSplit split = HullSolver(problem.heads()).at(4);
  EXPECT_EQ(split.counts, (Counts{2, 0, 2}));
  EXPECT_EQ(split.loss, 0);
  EXPECT_EQ(split.slope, 0);
}

// Head 1 must keep its worthless entries, though head 0 has better ones.
TEST(BudgetSolver, KeepsTheLeastOfEveryHead) {
  const BudgetProblem problem{.gains = {{9, 8, 7}, {0, 0, 1}}, .least = {0, 2}};
  const HullSolver solver(problem.heads());
  EXPECT_EQ(solver.least_total(), 2);
  EXPECT_EQ(solver.at(2).counts, (Counts{0, 2}));
  EXPECT_EQ(solver.at(4).counts, (Counts{2, 2}));
}

TEST(BudgetSolver, EverySumIsExactAndEveryHeadWithinItsRange) {
  Random random(1);
  for (int round = 0; round < 20; ++round) {
    const BudgetProblem problem = ref::draw_budget_problem(random, 7, 50);
    const HullSolver solver(problem.heads());
    double loss = std::numeric_limits<double>::infinity();
    for (int64_t total = solver.least_total(); total <= solver.most_total(); ++total) {
      const BudgetSplit split = solver.at(total);
      ASSERT_EQ(sum(split.counts), total);
      for (size_t h = 0; h < problem.gains.size(); ++h) {
        ASSERT_GE(split.counts[h], problem.least[h]);
        ASSERT_LE(split.counts[h], static_cast<int32_t>(problem.gains[h].size()));
      }
      ASSERT_LE(split.bound, split.loss);
      ASSERT_LE(split.bound, loss);  // one entry more never raises it
      loss = split.bound * (1 + 1e-12);
      ASSERT_EQ(split.counts, solver.at(total).counts);
    }
    EXPECT_EQ(loss, 0);
  }
}

// The textbook's greedy: the head whose next block has the largest gain, one block at a time.
Counts block_by_block(const HullSolver& solver, int64_t total) {
  Counts counts;
  std::vector<size_t> blocks(solver.hulls().size(), 0);
  for (const LossHull& hull : solver.hulls()) counts.push_back(hull.counts.front());
  for (int64_t left = total - sum(counts); left > 0;) {
    size_t best = blocks.size();
    for (size_t h = 0; h < blocks.size(); ++h) {
      const LossHull& hull = solver.hulls()[h];
      if (blocks[h] == hull.blocks()) continue;
      if (best == blocks.size() || hull.gains[blocks[h]] > solver.hulls()[best].gains[blocks[best]]) best = h;
    }
    const LossHull& hull = solver.hulls()[best];
    const int64_t taken = std::min<int64_t>(left, hull.counts[blocks[best] + 1] - hull.counts[blocks[best]]);
    ++blocks[best];
    counts[best] += static_cast<int32_t>(taken);
    left -= taken;
  }
  return counts;
}

TEST(BudgetSolver, KeepsWhatTheGreedyTakesBlockByBlock) {
  Random random(4);
  for (int round = 0; round < 10; ++round) {
    const BudgetProblem problem = ref::draw_budget_problem(random, 7, 40);
    const HullSolver solver(problem.heads());
    for (int64_t total = solver.least_total(); total <= solver.most_total(); ++total) {
      ASSERT_EQ(solver.at(total).counts, block_by_block(solver, total)) << total;
    }
  }
}

TEST(BudgetSolver, AtMostOneHeadEndsInsideABlock) {
  Random random(2);
  const BudgetProblem problem = ref::draw_budget_problem(random, 9, 60);
  const HullSolver solver(problem.heads());
  for (int64_t total = solver.least_total(); total <= solver.most_total(); ++total) {
    const BudgetSplit split = solver.at(total);
    int inside = 0;
    for (size_t h = 0; h < problem.gains.size(); ++h) {
      const auto& counts = solver.hulls()[h].counts;
      inside += std::binary_search(counts.begin(), counts.end(), split.counts[h]) ? 0 : 1;
    }
    ASSERT_LE(inside, 1);
    if (inside == 0) {
      ASSERT_EQ(split.loss, split.bound);
    }
  }
}

// Every split of 4 heads with up to 6 entries, priced by the hulls and by the curves themselves.
TEST(BudgetSolver, NoSplitOfTheHullsLosesLess) {
  Random random(3);
  for (int round = 0; round < 12; ++round) {
    const BudgetProblem problem = ref::draw_budget_problem(random, 4, 6);
    const HullSolver solver(problem.heads());
    std::vector<ref::LossTable> curves;
    std::vector<ref::LossTable> hulls;
    for (size_t h = 0; h < problem.gains.size(); ++h) {
      curves.push_back(ref::loss_table(problem.gains[h], problem.least[h]));
      hulls.push_back(ref::lower_hull(curves.back()));
    }
    for (int64_t total = solver.least_total(); total <= solver.most_total(); ++total) {
      const BudgetSplit split = solver.at(total);
      const auto count = static_cast<int32_t>(total);
      const double slack = 1e-13 * solver.loss(problem.least);  // some dozens of roundings
      EXPECT_NEAR(split.bound, ref::split_by_enumeration(hulls, count).loss, slack);
      const double best = ref::split_by_enumeration(curves, count).loss;
      EXPECT_GE(split.loss, best - slack);
      if (split.loss == split.bound) {
        EXPECT_NEAR(split.loss, best, slack);
      }  // optimal at the vertices
    }
  }
}

TEST(BudgetSolver, GapIsRelativeToTheReference) {
  EXPECT_EQ(relative_gap(3, 2), 0.5);
  EXPECT_EQ(relative_gap(0, 0), 0);
  EXPECT_EQ(relative_gap(1, 0), std::numeric_limits<double>::infinity());
}

std::string error_of(const BudgetProblem& problem, int64_t total) {
  try {
    HullSolver(problem.heads()).at(total);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(BudgetSolver, RefusesTotalsOutOfRange) {
  const BudgetProblem problem{.gains = {{1, 2}, {3}}, .least = {1, 0}};
  EXPECT_EQ(error_of(problem, 0), "budget: 0 entries over 2 heads: expected 1 (what always stays) to 3 (all)");
  EXPECT_EQ(error_of(problem, 4), "budget: 4 entries over 2 heads: expected 1 (what always stays) to 3 (all)");
  EXPECT_EQ(error_of(problem, 1), "");
}

TEST(BudgetSolver, RefusesGainsThatAreNoImportance) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(error_of({.gains = {{1}, {1, nan}}}, 1),
            "budget: gain 1 of head 1 is nan: expected a finite number of at least 0");
  EXPECT_EQ(error_of({.gains = {{-1}}}, 1), "budget: gain 0 of head 0 is -1: expected a finite number of at least 0");
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(error_of({.gains = {{infinity}}}, 1),
            "budget: gain 0 of head 0 is inf: expected a finite number of at least 0");
}

// What it holds: at most a block of 20 bytes an entry (sim/budget/hull.h), which sorted gains have.
TEST(BudgetSolver, HoldsMemoryLinearInEntries) {
  constexpr size_t kHeads = 6;
  const auto bytes_of = [](int entries) {
    Random random(1);
    BudgetProblem problem;
    for (size_t h = 0; h < kHeads; ++h) {
      problem.gains.push_back(ref::draw_gains(random, ref::GainKind::kSorted, entries));
    }
    const HullSolver solver(problem.heads());
    size_t bytes = 0;
    for (const LossHull& hull : solver.hulls()) {
      EXPECT_EQ(hull.blocks(), static_cast<size_t>(entries));
      bytes += hull.counts.capacity() * sizeof(int32_t);
      bytes += (hull.losses.capacity() + hull.gains.capacity()) * sizeof(double);
    }
    return bytes;
  };
  const size_t small = bytes_of(10'000), double_size = bytes_of(20'000), fourfold = bytes_of(40'000);
  EXPECT_LE(small, kHeads * (20 * 10'000 + 12));
  EXPECT_LE(static_cast<double>(double_size), 2.1 * static_cast<double>(small));
  EXPECT_LE(static_cast<double>(fourfold), 2.1 * static_cast<double>(double_size));
}

}  // namespace
}  // namespace kv
