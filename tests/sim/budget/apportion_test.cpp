#include "sim/budget/apportion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "sim/tasks/random.h"

namespace kv {
namespace {

using Counts = std::vector<int32_t>;

Counts apportioned(int64_t total, const std::vector<double>& weights, const Counts& rooms) {
  Counts counts(weights.size(), -1);
  apportion(total, weights, rooms, counts);
  return counts;
}

TEST(Apportion, SharesInProportionAndGivesTheRestToTheLargestRemainders) {
  // Shares 2.5, 1.25, 1.25 of 5: floors 2, 1, 1, and the largest remainder takes the last.
  EXPECT_EQ(apportioned(5, {2, 1, 1}, {9, 9, 9}), (Counts{3, 1, 1}));
  // 10/3 each: the lower head wins the tie.
  EXPECT_EQ(apportioned(10, {1, 1, 1}, {9, 9, 9}), (Counts{4, 3, 3}));
}

TEST(Apportion, AFullHeadLeavesTheRestToTheOthers) {
  // Shares 8, 1, 1 of 10, but the first holds 4: the other 6 go to two equals.
  EXPECT_EQ(apportioned(10, {8, 1, 1}, {4, 9, 9}), (Counts{4, 3, 3}));
}

TEST(Apportion, EveryHeadWithRoomKeepsOne) {
  EXPECT_EQ(apportioned(10, {1000, 1, 0}, {9, 9, 9}), (Counts{8, 1, 1}));
  EXPECT_EQ(apportioned(10, {1, 1, 1}, {9, 0, 9}), (Counts{5, 0, 5}));
}

TEST(Apportion, HeadsWithoutWeightTakeWhatNobodyElseCan) {
  EXPECT_EQ(apportioned(10, {1, 0, 0}, {3, 9, 9}), (Counts{3, 4, 3}));
  EXPECT_EQ(apportioned(4, {0, 0}, {9, 9}), (Counts{2, 2}));
}

TEST(Apportion, FewerEntriesThanHeadsAndMoreThanThereIsRoom) {
  EXPECT_EQ(apportioned(2, {1, 5, 1}, {9, 9, 9}), (Counts{1, 1, 0}));
  EXPECT_EQ(apportioned(2, {1, 5, 1}, {0, 9, 9}), (Counts{0, 1, 1}));
  EXPECT_EQ(apportioned(100, {1, 5, 1}, {2, 3, 4}), (Counts{2, 3, 4}));
  EXPECT_EQ(apportioned(0, {1, 1}, {5, 5}), (Counts{0, 0}));
  EXPECT_EQ(apportioned(0, {}, {}), Counts{});
}

TEST(Apportion, HandsOutExactlyTheTotalWithinTheBounds) {
  Random random(7, 0);
  for (int round = 0; round < 2000; ++round) {
    const size_t heads = 1 + random.below(40);
    std::vector<double> weights;
    Counts rooms;
    for (size_t h = 0; h < heads; ++h) {
      weights.push_back(random.chance(0.2) ? 0.0 : std::exp(static_cast<double>(random.between(-12, 12))));
      rooms.push_back(random.chance(0.1) ? 0 : random.between(1, 500));
    }
    const int64_t room = std::accumulate(rooms.begin(), rooms.end(), int64_t{0});
    const auto total = static_cast<int64_t>(random.below(static_cast<uint64_t>(room) + 50));
    const Counts counts = apportioned(total, weights, rooms);
    const int64_t open = std::count_if(rooms.begin(), rooms.end(), [](int32_t spare) { return spare > 0; });
    ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), std::min(total, room));
    for (size_t h = 0; h < heads; ++h) {
      ASSERT_LE(counts[h], rooms[h]);
      ASSERT_GE(counts[h], total >= open ? std::min(rooms[h], 1) : 0);
      // A heavier head with as much room never gets less, but for the one entry that rounding moves.
      for (size_t other = 0; other < heads; ++other) {
        if (weights[h] >= weights[other] && rooms[h] >= rooms[other] && total >= open) {
          ASSERT_GE(counts[h] + 1, counts[other]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kv
