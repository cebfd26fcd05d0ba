#include "sim/tasks/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <vector>

namespace kv {
namespace {

using Words = std::array<uint32_t, 4>;

// The three vectors of philox4x32-10 that Random123 publishes (kat_vectors).
TEST(Philox, GivesThePublishedVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, CountsThroughThePhiloxBlocksOfItsStream) {
  Random random(0);
  Words first;
  for (uint32_t& word : first) word = random.next_u32();
  EXPECT_EQ(first, philox4x32({0, 0, 0, 0}, {0, 0}));
  EXPECT_EQ(random.next_u32(), philox4x32({1, 0, 0, 0}, {0, 0})[0]);
  EXPECT_EQ(Random(5, 7).next_u32(), philox4x32({0, 0, 7, 0}, {5, 0})[0]);
}

TEST(Random, UniformIsTheTop53BitsOfTwoWords) {
  EXPECT_EQ(Random(0).uniform(), 0x6627e8d5e169c58dp-64 - 0x58dp-64);  // the last 11 bits are dropped
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const double value = random.uniform();
    EXPECT_TRUE(value >= 0.0 && value < 1.0);
  }
}

TEST(Random, BelowReachesEveryValueAboutEquallyOften) {
  Random random(3);
  std::array<int, 7> counts{};
  for (int i = 0; i < 7000; ++i) ++counts[random.below(7)];
  // Five standard deviations: sqrt(7000 * 1/7 * 6/7) = 29.3
  for (const int count : counts) EXPECT_NEAR(count, 1000, 147);
  EXPECT_EQ(random.below(1), 0u);
}

TEST(Random, ShuffleKeepsTheItemsAndSampleHasNoRepeats) {
  Random random(4);
  std::vector<int> items(50);
  std::iota(items.begin(), items.end(), 0);
  std::vector<int> shuffled = items;
  random.shuffle(shuffled);
  EXPECT_NE(shuffled, items);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, items);

  const auto picked = random.sample(50, 20);
  EXPECT_EQ(std::set<size_t>(picked.begin(), picked.end()).size(), 20u);
  EXPECT_LT(*std::max_element(picked.begin(), picked.end()), 50u);
  EXPECT_EQ(random.sample(6, 6).size(), 6u);
  EXPECT_TRUE(random.sample(6, 0).empty());
}

TEST(Random, StreamsAndSeedsDiffer) {
  std::set<uint64_t> firsts;
  for (uint64_t seed = 0; seed < 10; ++seed)
    for (uint64_t stream = 0; stream < 10; ++stream) firsts.insert(Random(seed, stream).next_u64());
  EXPECT_EQ(firsts.size(), 100u);
}

}  // namespace
}  // namespace kv
