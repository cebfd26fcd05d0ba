#include "sim/budget/exact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/error.h"
#include "tests/ref/budget_split.h"
#include "tests/support/budget_problems.h"

namespace kv {
namespace {

using ref::BudgetProblem;
using ref::GainKind;
using Counts = std::vector<int32_t>;

std::vector<ref::LossTable> tables(const BudgetProblem& problem) {
  std::vector<ref::LossTable> result;
  for (const HeadGains& head : problem.heads()) {
    result.push_back(ref::loss_table({head.gains.begin(), head.gains.end()}, head.least));
  }
  return result;
}

// Some hundreds of roundings of what there is to lose.
double slack(const HullSolver& solver, const BudgetProblem& problem) {
  return 1e-12 * solver.loss(problem.least.empty() ? Counts(problem.gains.size(), 0) : problem.least);
}

// Head 0 pools to 2.5, 2.5. The hull at 1 opens it and loses 4 + 2; keeping the 2 of head 1 loses 5.
TEST(BudgetExact, LeavesABlockClosedWhereAnotherHeadPaysMore) {
  const BudgetProblem problem{.gains = {{1, 4}, {2}}};
  const HullSolver solver(problem.heads());
  EXPECT_EQ(solver.at(1).counts, (Counts{1, 0}));
  EXPECT_EQ(solver.at(1).loss, 6);
  const BudgetSplit exact = solve_exact(solver, 1);
  EXPECT_EQ(exact.counts, (Counts{0, 1}));
  EXPECT_EQ(exact.loss, 5);
  EXPECT_EQ(exact.bound, 4.5);  // 7 − 2.5
  EXPECT_EQ(relative_gap(6, exact.loss), 0.2);
}

// One entry of either pair loses the same; the lower head gets it.
TEST(BudgetExact, LowerHeadsKeepMoreAmongEqualLosses) {
  const BudgetProblem problem{.gains = {{1, 2}, {1, 2}, {1, 2}}};
  const HullSolver solver(problem.heads());
  EXPECT_EQ(solve_exact(solver, 1).counts, (Counts{1, 0, 0}));
  EXPECT_EQ(solve_exact(solver, 3).counts, (Counts{2, 1, 0}));
  EXPECT_EQ(solve_exact(solver, 5).counts, (Counts{2, 2, 1}));
}

TEST(BudgetExact, EqualsEnumerationOfTinyProblems) {
  Random random(1);
  for (int round = 0; round < 30; ++round) {
    const BudgetProblem problem = ref::draw_budget_problem(random, 4, 6);
    const HullSolver solver(problem.heads());
    for (int64_t total = solver.least_total(); total <= solver.most_total(); ++total) {
      const ref::Split expected = ref::split_by_enumeration(tables(problem), static_cast<int32_t>(total));
      const BudgetSplit exact = solve_exact(solver, total);
      ASSERT_NEAR(exact.loss, expected.loss, slack(solver, problem));
      ASSERT_EQ(std::accumulate(exact.counts.begin(), exact.counts.end(), int64_t{0}), total);
    }
  }
}

// Small whole numbers are summed without rounding, so ties are ties.
TEST(BudgetExact, BreaksTiesAsTheTextbookTableDoes) {
  Random random(2);
  for (int round = 0; round < 10; ++round) {
    BudgetProblem problem;
    for (int h = 0; h < 5; ++h) problem.gains.push_back(ref::draw_gains(random, GainKind::kPlateaus, 12));
    const HullSolver solver(problem.heads());
    for (int32_t total = 0; total <= 60; ++total) {
      const BudgetSplit exact = solve_exact(solver, total);
      const ref::Split expected = ref::split_by_knapsack(tables(problem), total);
      ASSERT_EQ(exact.loss, expected.loss);
      if (exact.slope == static_cast<int>(exact.slope)) {
        ASSERT_EQ(exact.counts, expected.counts) << total;
      }
    }
  }
}

// 6 heads of 60 entries of every kind, and with least, short and empty heads.
TEST(BudgetExact, EqualsTheTextbookTable) {
  Random random(3);
  int better = 0;
  for (int round = 0; round < 2 * ref::kGainKinds; ++round) {
    BudgetProblem problem;
    for (int h = 0; h < 6; ++h) {
      const int kind = round < ref::kGainKinds ? round : static_cast<int>(random.below(ref::kGainKinds));
      const int entries = round < ref::kGainKinds || h > 1 ? 60 : h;  // the last rounds: one of none, one of a single
      problem.gains.push_back(ref::draw_gains(random, static_cast<GainKind>(kind), entries));
      problem.least.push_back(std::min(entries, h));
    }
    const HullSolver solver(problem.heads());
    for (int64_t total = solver.least_total(); total <= solver.most_total(); total += 7) {
      const ref::Split expected = ref::split_by_knapsack(tables(problem), static_cast<int32_t>(total));
      const BudgetSplit exact = solve_exact(solver, total);
      const BudgetSplit greedy = solver.at(total);
      ASSERT_NEAR(exact.loss, expected.loss, slack(solver, problem)) << total;
      ASSERT_EQ(std::accumulate(exact.counts.begin(), exact.counts.end(), int64_t{0}), total);
      for (size_t h = 0; h < exact.counts.size(); ++h) ASSERT_GE(exact.counts[h], problem.least[h]);
      ASSERT_LE(exact.bound, exact.loss);
      ASSERT_LE(exact.loss, greedy.loss);
      if (greedy.loss == greedy.bound) {
        ASSERT_EQ(exact.counts, greedy.counts);
      }
      better += exact.loss < greedy.loss - slack(solver, problem) ? 1 : 0;
    }
  }
  EXPECT_GT(better, 20);  // or the comparison shows nothing
}

TEST(BudgetExact, GivesTheSameSplitTwice) {
  Random random(4);
  BudgetProblem problem;
  for (int h = 0; h < 16; ++h) problem.gains.push_back(ref::draw_gains(random, GainKind::kNoisy, 200));
  const HullSolver solver(problem.heads());
  for (int64_t total = 0; total <= solver.most_total(); total += 397) {
    const BudgetSplit once = solve_exact(solver, total);
    const BudgetSplit again = solve_exact(HullSolver(problem.heads()), total);
    EXPECT_EQ(once.counts, again.counts);
    EXPECT_EQ(once.loss, again.loss);
  }
}

std::string error_of(const BudgetProblem& problem, int64_t total, const ExactLimits& limits = {}) {
  try {
    solve_exact(HullSolver(problem.heads()), total, limits);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(BudgetExact, RefusesMoreThanItsMostEntries) {
  EXPECT_EQ(error_of({.gains = {std::vector<float>(4096, 1.0f)}}, 7), "");
  EXPECT_EQ(error_of({.gains = {{1}, std::vector<float>(4097, 1.0f)}}, 7),
            "budget: head 1 has 4097 entries: expected at most 4096 for an exact split");
  EXPECT_EQ(error_of({.gains = {{1}}}, 2), "budget: 2 entries over 1 heads: expected 0 (what always stays) to 1 (all)");
}

// 0, 1, 0, 1, …: every even count lies on its hull, so an odd total has rivals everywhere.
TEST(BudgetExact, RefusesMoreRivalsThanItsLimits) {
  std::vector<float> gains(64);
  for (size_t i = 1; i < gains.size(); i += 2) gains[i] = 1;
  const BudgetProblem problem{.gains = std::vector<std::vector<float>>(8, gains)};
  EXPECT_EQ(error_of(problem, 255), "");
  EXPECT_EQ(error_of(problem, 255, {.steps = 1000}),
            "budget: the exact split has too many near-optimal rivals: expected at most 1000 steps and 67108864 "
            "partial sums; the hull's split has no such limit");
  EXPECT_THAT(error_of(problem, 255, {.states = 1000}), testing::HasSubstr("1000 partial sums"));
}

}  // namespace
}  // namespace kv
