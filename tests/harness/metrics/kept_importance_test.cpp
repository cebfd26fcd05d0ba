#include "harness/metrics/kept_importance.h"

#include <gtest/gtest.h>

#include "sim/tasks/random.h"

namespace kv::test {
namespace {

KeptImportance judge(const std::vector<float>& importance, const std::vector<uint8_t>& keep) {
  std::vector<float> scratch;
  return judge_kept(importance, keep, scratch);
}

TEST(KeptImportance, SplitsWhatIsKeptAndLostByHand) {
  // b = 3, the best are 9, 8, 5. Kept: 9, 4, 1: one hit; 8 and 5 are missed, 4 and 1 are kept in their place.
  const KeptImportance got = judge({9, 1, 8, 4, 5}, {1, 1, 0, 1, 0});
  EXPECT_EQ(got.entries, 3);
  EXPECT_EQ(got.hits, 1);
  EXPECT_EQ(got.total, 27);
  EXPECT_EQ(got.kept, 14);
  EXPECT_EQ(got.best, 22);
  EXPECT_EQ(got.missed, 13);
  EXPECT_EQ(got.false_positives, 5);
}

TEST(KeptImportance, TakesTheCountFromWhatWasKept) {
  // The same head at b = 1 and b = 4: nothing tells it a budget.
  EXPECT_EQ(judge({9, 1, 8, 4, 5}, {0, 0, 1, 0, 0}).best, 9);
  EXPECT_EQ(judge({9, 1, 8, 4, 5}, {1, 1, 1, 1, 0}).best, 26);
}

TEST(KeptImportance, CountsEqualImportanceAtTheCutAsAHit) {
  // The best two are 3 and any one of the 2s; kept are two of the 2s, of which one is a hit.
  const KeptImportance got = judge({2, 3, 2, 2}, {1, 0, 1, 0});
  EXPECT_EQ(got.hits, 1);
  EXPECT_EQ(got.missed, 3);
  EXPECT_EQ(got.false_positives, 2);
  // One entry less important than the cut is kept: the 2 that would have been as good as the other is missed.
  const KeptImportance other = judge({2, 3, 2, 1}, {0, 1, 0, 1});
  EXPECT_EQ(other.hits, 1);
  EXPECT_EQ(other.missed, 2);
  EXPECT_EQ(other.false_positives, 1);
}

TEST(KeptImportance, OfNothingOrEverythingKeptHasNoGap) {
  const KeptImportance none = judge({2, 3}, {0, 0});
  EXPECT_EQ(none.entries, 0);
  EXPECT_EQ(none.best, 0);
  EXPECT_EQ(none.missed, 0);
  const KeptImportance all = judge({2, 3}, {1, 1});
  EXPECT_EQ(all.hits, 2);
  EXPECT_EQ(all.best, all.kept);
  EXPECT_EQ(judge({}, {}).total, 0);
}

// 002 Eq. 7, with ties: importance takes six values only.
TEST(KeptImportance, GapIsMissedLessFalselyKept) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> importance;
    std::vector<uint8_t> keep;
    for (int j = 0; j < 1 + round % 40; ++j) {
      importance.push_back(static_cast<float>(random.below(6)));
      keep.push_back(random.uniform() < 0.02 * (round % 50) ? 1 : 0);
    }
    const KeptImportance got = judge(importance, keep);
    EXPECT_GE(got.best, got.kept);
    EXPECT_EQ(got.best - got.kept, got.missed - got.false_positives) << round;  // small integers: exact
    EXPECT_LE(got.hits, got.entries);
    EXPECT_GE(got.hits, 2 * got.entries - static_cast<int64_t>(keep.size()));  // two sets of b overlap so much
  }
}

}  // namespace
}  // namespace kv::test
