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

// Every segment of up to three intervals, also across the first interval's beginning and events' ends, against what is
// said of each of its tokens.
TEST(LateAttentionParts, HaveTheTokensOfOneSuffixAlone) {
  for (const Suffixes& suffixes : all_suffixes()) {
    for (int32_t first = 0; first < kFirst + 2 * suffixes.interval; ++first) {
      for (int32_t count = 0; count < 2 * suffixes.interval + 2; ++count) {
        const Segment segment{.sequence = 3, .first_token = 40, .count = count, .first_position = first};
        const auto interval_of = [&](int32_t position) { return (position - kFirst) / suffixes.interval; };
        int32_t taken = 0, wanted = 0;
        for (int k = 0; k < suffixes.count; ++k) {
          const Segment part = part_of(segment, suffixes, k);
          EXPECT_EQ(part.sequence, 3);
          taken += part.count;
          if (part.count == 0) continue;
          EXPECT_EQ(part.first_token - part.first_position, 40 - first);
          EXPECT_GE(part.first_position, first);
          EXPECT_LE(part.first_position + part.count, first + count);
          for (int32_t p = part.first_position; p < part.first_position + part.count; ++p) {
            ASSERT_GE(p, kFirst);
            EXPECT_EQ(interval_of(p), interval_of(first + count - 1));
            const int32_t left = suffixes.interval - (p - kFirst) % suffixes.interval;
            EXPECT_LE(left, suffixes.of[k]);
            if (k > 0) {
              EXPECT_GT(left, suffixes.of[k - 1]);
            }
          }
        }
        for (int32_t p = std::max(first, kFirst); p < first + count; ++p) {
          const int32_t left = suffixes.interval - (p - kFirst) % suffixes.interval;
          wanted += left <= suffixes.of[suffixes.count - 1] && interval_of(p) == interval_of(first + count - 1) ? 1 : 0;
        }
        EXPECT_EQ(taken, wanted);
      }
    }
  }
}

}  // namespace
}  // namespace kv
