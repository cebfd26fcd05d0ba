#include "sim/budget/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace kv {
namespace {

using Values = CalibrationQuestion::Values;
using Orders = CalibrationQuestion::Orders;

CalibrationQuestion question(const Values& importance, const Orders& orders) {
  CalibrationQuestion result{.importance = &importance, .orders = {}};
  result.orders.fill(&orders);
  return result;
}

// Two heads of 4 tokens. The first is kept in the order 3, 2, 1, 0 with gains .4, .3, .1, 0, the second in the order
// 0, 1, 2, 3 with gains .1, .1, 0, 0. No hull has a block of more than one entry.
class TwoHeads : public testing::Test {
 protected:
  Values importance_ = {{0, 0.1F, 0.3F, 0.4F}, {0.1F, 0.1F, 0, 0}};
  Orders orders_ = {{3, 2, 1, 0}, {0, 1, 2, 3}};
};

TEST_F(TwoHeads, ProfileByHand) {
  const CalibrationQuestion questions[] = {question(importance_, orders_)};
  const CalibrationResult result = calibrate(questions, 0);
  const auto removed = [&](int percent, size_t head) {
    return result.removed[static_cast<size_t>(percent - 1) * 2 + head];
  };
  // Half of 8 entries: of gains .4, .3, .1 | .1, .1 the largest are .4, .3 and, lower head first, .1 of head 0; one
  // entry of head 1 is the least that it keeps. 3 and 1 of 4.
  EXPECT_FLOAT_EQ(removed(50, 0), 0.25F);
  EXPECT_FLOAT_EQ(removed(50, 1), 0.75F);
  EXPECT_NEAR(result.losses.greedy[49], 0.1, 1e-6);
  EXPECT_NEAR(result.losses.bound[49], 0.1, 1e-6);
  // 2 and 2: .1 of head 0 leaves.
  EXPECT_NEAR(result.losses.uniform[49], 0.1, 1e-6);
  EXPECT_NEAR(result.losses.profile[49], 0.1, 1e-6);
  // 62 % of 8 leave: 3.04, so 3 stay: 2 and 1. Uniform: 2 and 1, too.
  EXPECT_FLOAT_EQ(removed(62, 0), 0.5F);
  EXPECT_FLOAT_EQ(removed(62, 1), 0.75F);
  EXPECT_NEAR(result.losses.greedy[61], 0.2, 1e-6);
  // 99 %: nothing would stay of 8 entries; each head keeps its one.
  EXPECT_FLOAT_EQ(removed(99, 0), 0.75F);
  EXPECT_FLOAT_EQ(removed(99, 1), 0.75F);
  EXPECT_FALSE(result.split_half);
}

TEST_F(TwoHeads, RatiosAreMeansOverQuestions) {
  const Values other = {{0, 0, 0, 0.1F}, {0.4F, 0.3F, 0.1F, 0.1F}};
  const CalibrationQuestion questions[] = {question(importance_, orders_), question(other, orders_)};
  const CalibrationResult result = calibrate(questions, 0);
  // At 50 % the first question keeps 3 and 1, the second 1 and 3: of .1 | .4, .3, .1, .1 all but one.
  EXPECT_FLOAT_EQ(result.removed[98], 0.5F);
  EXPECT_FLOAT_EQ(result.removed[99], 0.5F);
  // Their own profiles lose .1 and .1; each other's lose .4 (3 of head 1 ... 1 of head 0: .3 + .1) and .5.
  EXPECT_NEAR(result.losses.greedy[49], 0.1, 1e-6);
  ASSERT_TRUE(result.split_half);
  EXPECT_NEAR(result.split_half->half, 0.9 / 0.2, 1e-5);
}

TEST(Calibration, OrderMayDependOnTheRatio) {
  const Values importance = {{1, 0, 0, 0}, {0, 0.25F, 0.25F, 0.25F}};
  const Orders good = {{0, 1, 2, 3}, {1, 2, 3, 0}}, bad = {{3, 2, 1, 0}, {0, 3, 2, 1}};
  CalibrationQuestion mixed = question(importance, good);
  mixed.orders[49] = &bad;
  const CalibrationResult result = calibrate(std::span(&mixed, 1), 0);
  EXPECT_NEAR(result.losses.greedy[48], 0, 1e-6);  // 1 and 3 of 8 stay, all that count
  // After the one that each keeps, the bad order has gains 0, 0, 1, a block of 1/3, and .25, .25, .25: the two entries
  // left go to the block and end inside it.
  EXPECT_NEAR(result.losses.greedy[49], 1.75, 1e-6);
  EXPECT_NEAR(result.losses.bound[49], 1.75 - 2.0 / 3, 1e-6);
  EXPECT_NEAR(result.losses.greedy[50], 0, 1e-6);
}

// Random heads: losses are in order, every ratio leaves room for the least, totals are what was asked.
TEST(Calibration, LossesAreInOrder) {
  std::mt19937 random(3);
  std::vector<Values> importance(6, Values(5, std::vector<float>(200)));
  Orders orders(5, std::vector<int32_t>(200));
  for (size_t h = 0; h < 5; ++h) {
    std::iota(orders[h].begin(), orders[h].end(), 0);
    std::shuffle(orders[h].begin(), orders[h].end(), random);
    for (Values& values : importance) {
      for (size_t i = 0; i < 200; ++i) {
        const auto place = static_cast<size_t>(orders[h][i]);
        values[h][place] = static_cast<float>(random() % 1000) / static_cast<float>(1 + i * (h + 1));
      }
    }
  }
  std::vector<CalibrationQuestion> questions;
  for (const Values& values : importance) questions.push_back(question(values, orders));
  const CalibrationResult result = calibrate(questions);
  const ProfileLosses& losses = result.losses;
  for (size_t i = 0; i < kProfileRatios; ++i) {
    EXPECT_LE(losses.bound[i], losses.greedy[i] * (1 + 1e-9));
    EXPECT_LE(losses.bound[i], losses.profile[i] * (1 + 1e-9));
    EXPECT_LE(losses.bound[i], losses.uniform[i] * (1 + 1e-9));
    if (i > 0) {
      EXPECT_GE(losses.uniform[i], losses.uniform[i - 1]);
    }
    double kept = 0;
    for (size_t h = 0; h < 5; ++h) {
      EXPECT_LE(result.removed[i * 5 + h], 0.99F);
      kept += 1 - result.removed[i * 5 + h];
    }
    EXPECT_NEAR(kept * 200, std::max<double>(10, static_cast<double>((99 - i) * 10)), 0.02);
  }
  EXPECT_LT(losses.profile[79], losses.uniform[79]) << "the case shows nothing";
  ASSERT_TRUE(result.split_half);
  EXPECT_GE(result.split_half->half, 0.9);
}

}  // namespace
}  // namespace kv
