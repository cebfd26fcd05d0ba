#include "sim/budget/hull.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/ref/budget_split.h"
#include "tests/support/budget_problems.h"

namespace kv {
namespace {

// Sums of at most 40 terms, each side rounded in its own order.
double tolerance(const ref::LossTable& losses, int32_t least) {
  return 100 * 0x1p-52 * losses[static_cast<size_t>(least)];
}

// 1 < 4 pool to 5/2; 0 < 3 to 3/2, which is below 2: (0 + 3 + 2) / 3.
TEST(BudgetHull, PoolsWhatRisesIntoItsMean) {
  const std::vector<float> gains = {5, 1, 4, 0, 3, 2, 0.5};
  EXPECT_EQ(pool_adjacent_violators(gains), (std::vector<double>{5, 2.5, 2.5, 5.0 / 3, 5.0 / 3, 5.0 / 3, 0.5}));
}

TEST(BudgetHull, PoolsNothingOfASequenceThatNeverRises) {
  EXPECT_EQ(pool_adjacent_violators(std::vector<float>{3, 2, 2, 0}), (std::vector<double>{3, 2, 2, 0}));
  EXPECT_EQ(pool_adjacent_violators({}), std::vector<double>{});
}

// L of [5, 1, 4, 2, 2]: 14 9 8 4 2 0. Only b = 2 lies above the hull; equal gains stay two blocks.
TEST(BudgetHull, HasAVertexWhereverTheCurveTouchesIt) {
  const std::vector<float> gains = {5, 1, 4, 2, 2};
  const LossHull hull = loss_hull({.gains = gains});
  EXPECT_EQ(hull.counts, (std::vector<int32_t>{0, 1, 3, 4, 5}));
  EXPECT_EQ(hull.losses, (std::vector<double>{14, 9, 4, 2, 0}));
  EXPECT_EQ(hull.gains, (std::vector<double>{5, 2.5, 2, 2}));
}

// With the first entry fixed, [1, 9] rises on its own: the hull of the whole would pool all three.
TEST(BudgetHull, BeginsAtWhatAlwaysStays) {
  const std::vector<float> gains = {1, 1, 9};
  const LossHull hull = loss_hull({.gains = gains, .least = 1});
  EXPECT_EQ(hull.counts, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(hull.losses, (std::vector<double>{10, 0}));
  EXPECT_EQ(hull.gains, (std::vector<double>{5}));
}

TEST(BudgetHull, IsAPointWhereNothingIsLeftToChoose) {
  const std::vector<float> gains = {2, 1};
  for (const HeadGains& head : {HeadGains{}, HeadGains{.gains = gains, .least = 2}}) {
    const LossHull hull = loss_hull(head);
    EXPECT_EQ(hull.counts, (std::vector<int32_t>{head.least}));
    EXPECT_EQ(hull.losses, (std::vector<double>{0}));
    EXPECT_EQ(hull.blocks(), 0u);
  }
}

TEST(BudgetHull, IsTheLowerHullOfTheLossCurve) {
  Random random(1);
  for (int round = 0; round < 60; ++round) {
    const auto kind = static_cast<ref::GainKind>(round % ref::kGainKinds);
    const std::vector<float> gains = ref::draw_gains(random, kind, round % 41);
    const int32_t least = std::min(round % 41, round % 4);
    const ref::LossTable losses = ref::loss_table(gains, least);
    const ref::LossTable expected = ref::lower_hull(losses);
    const LossHull hull = loss_hull({.gains = gains, .least = least});
    for (size_t i = 0; i < hull.blocks(); ++i) {
      if (i > 0) {
        EXPECT_LE(hull.gains[i], hull.gains[i - 1]);
      }  // convex
      for (int32_t b = hull.counts[i]; b <= hull.counts[i + 1]; ++b) {
        const double pooled = hull.losses[i] - hull.gains[i] * (b - hull.counts[i]);
        EXPECT_NEAR(pooled, expected[static_cast<size_t>(b)], tolerance(losses, least));
        EXPECT_LE(pooled, losses[static_cast<size_t>(b)] + tolerance(losses, least));
      }
    }
  }
}

TEST(BudgetHull, PooledGainsAreItsSlopes) {
  Random random(2);
  for (int kind = 0; kind < ref::kGainKinds; ++kind) {
    const std::vector<float> gains = ref::draw_gains(random, static_cast<ref::GainKind>(kind), 33);
    const std::vector<double> pooled = pool_adjacent_violators(gains);
    const ref::LossTable losses = ref::loss_table(gains);
    const ref::LossTable hull = ref::lower_hull(losses);
    ASSERT_EQ(pooled.size(), gains.size());
    for (size_t i = 0; i < pooled.size(); ++i) EXPECT_NEAR(pooled[i], hull[i] - hull[i + 1], tolerance(losses, 0));
  }
}

}  // namespace
}  // namespace kv
