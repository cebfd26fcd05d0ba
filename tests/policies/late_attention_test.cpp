#include "policies/parts/late_attention.h"

#include <gtest/gtest.h>

#include <vector>

namespace kv {
namespace {

constexpr int32_t kFirst = 5;

// Intervals that are longer than every suffix, as long, one longer, and of one token: suffixes are cut to them.
std::vector<Suffixes> all_suffixes() {
  return {{kFirst, 12, 3, {2, 5, 9}}, {kFirst, 9, 3, {2, 5, 9}}, {kFirst, 10, 3, {2, 5, 9}},
          {kFirst, 7, 3, {2, 5, 7}},  {kFirst, 4, 3, {2, 4, 4}}, {kFirst, 1, 3, {1, 1, 1}}};
}

// Every segment of up to three intervals, also across events' ends, token by token.
TEST(LateTokens, AreThoseOfASuffixOfTheIntervalInWhichASegmentEnds) {
  for (const Suffixes& suffixes : all_suffixes()) {
    const auto interval_of = [&](int32_t position) { return (position - kFirst) / suffixes.interval; };
    for (int32_t first = kFirst; first < kFirst + 2 * suffixes.interval; ++first) {
      for (int32_t count = 1; count < 2 * suffixes.interval + 2; ++count) {
        const Segment segment{.sequence = 3, .first_token = 40, .count = count, .first_position = first};
        for (int k = 0; k < suffixes.count; ++k) {
          int32_t want = 0;
          for (int32_t p = first; p < first + count; ++p) {
            const int32_t left = suffixes.interval - (p - kFirst) % suffixes.interval;
            want += left <= suffixes.of[k] && interval_of(p) == interval_of(first + count - 1) ? 1 : 0;
          }
          ASSERT_EQ(tokens_in(segment, suffixes, k), want) << first << "+" << count;
        }
      }
    }
  }
}

TEST(LateTokens, AreNoneOfASegmentThatIsEmptyOrBeginsBeforeIntervalsDo) {
  const Suffixes suffixes{kFirst, 4, 2, {2, 4}};
  EXPECT_EQ(tokens_in({.count = 0, .first_position = kFirst + 3}, suffixes, 1), 0);
  EXPECT_EQ(tokens_in({.count = 8, .first_position = kFirst - 1}, suffixes, 1), 0);
  EXPECT_EQ(tokens_in({.count = 8, .first_position = kFirst}, suffixes, 1), 4);
}

}  // namespace
}  // namespace kv
