#include "kernels/random_uniform.h"

#include <array>
#include <set>

#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RandomUniform);

using Words = std::array<uint32_t, 4>;

// The first word of Philox4x32-10 as its paper writes a round: (L, R) of two halves, L' = ⌊M·R / 2^32⌋ ⊕ k ⊕ L and
// R' = M·R mod 2^32, the rights changing places.
uint32_t philox_word(const Words& counter, uint64_t key) {
  uint32_t right0 = counter[0], left0 = counter[1], right1 = counter[2], left1 = counter[3];
  for (uint32_t round = 0; round < 10; ++round) {
    const uint32_t key0 = static_cast<uint32_t>(key) + round * 0x9E3779B9u;
    const uint32_t key1 = static_cast<uint32_t>(key >> 32) + round * 0xBB67AE85u;
    const uint64_t product0 = right0 * uint64_t{0xD2511F53}, product1 = right1 * uint64_t{0xCD9E8D57};
    right0 = static_cast<uint32_t>(product1 >> 32) ^ key0 ^ left0;
    right1 = static_cast<uint32_t>(product0 >> 32) ^ key1 ^ left1;
    left0 = static_cast<uint32_t>(product1);
    left1 = static_cast<uint32_t>(product0);
  }
  return right0;
}

float expected(uint64_t seed, const Words& counter) {
  const uint32_t top = philox_word(counter, seed ^ 0xA0761D6478BD642Full) >> 8;
  return static_cast<float>(top) / 16777216;
}

struct Draw {
  std::vector<int32_t> numbers, tokens_seen;
  uint64_t seed = 1;
  uint32_t first_head = 0;
  std::vector<uint8_t> due = {};  // none: all
};

std::vector<float> drawn(Backend& backend, const ref::PagedCache& cache, int64_t pitch, const Draw& draw) {
  Tensor numbers = ref::upload_array(backend, draw.numbers), seen = ref::upload_array(backend, draw.tokens_seen);
  Tensor due = ref::upload_array(backend, draw.due), scores(backend, DType::kF32, cache.rows().rows() * pitch);
  backend.random_uniform({.cache = cache.view(),
                          .seed = draw.seed,
                          .numbers = ref::data_of<int32_t>(numbers),
                          .tokens_seen = ref::data_of<int32_t>(seen),
                          .first_head = draw.first_head,
                          .rows_due = draw.due.empty() ? nullptr : ref::data_of<uint8_t>(due),
                          .scores = scores.slots<float>(pitch)});
  return ref::download_array<float>(scores);
}

// Lengths around a page's 16 entries and a tile's 256; names and seeds of more than 16 and 32 bits.
TEST_P(RandomUniform, IsPhiloxOfSampleHeadEventAndSlot) {
  KV_BACKEND_OR_SKIP(backend);
  // Two of the vectors that Random123 publishes.
  ASSERT_EQ(philox_word({0, 0, 0, 0}, 0), 0x6627e8d5u);
  ASSERT_EQ(philox_word({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822u), 0xd16cfe09u);
  const ref::PagedCache cache(*backend, ref::random_rows({17, 0, 256, 1, 255, 600, 16, 257, 300}, 3, 4, 1), 1);
  const int64_t pitch = 608;
  const Draw draw{.numbers = {4, 0x12345678, 0},
                  .tokens_seen = {700, 1, 500000},
                  .seed = 0xFEDCBA9876543210u,
                  .first_head = 35 << 16,
                  .due = {1, 1, 1, 0, 1, 1, 1, 1, 0}};
  const std::vector<float> got = drawn(*backend, cache, pitch, draw);
  for (int64_t row = 0; row < 9; ++row) {
    const int64_t count = draw.due[static_cast<size_t>(row)] ? cache.rows().length(row) : 0;
    const auto sequence = static_cast<size_t>(row / 3);
    for (int64_t slot = 0; slot < count; ++slot) {
      const Words counter = {static_cast<uint32_t>(draw.numbers[sequence]),
                             (35u << 16) + static_cast<uint32_t>(row % 3),
                             static_cast<uint32_t>(draw.tokens_seen[sequence]), static_cast<uint32_t>(slot)};
      ASSERT_EQ(got[static_cast<size_t>(row * pitch + slot)], expected(draw.seed, counter))
          << "row " << row << ", slot " << slot;
    }
    ref::expect_untouched(got, row * pitch + count, (row + 1) * pitch);
  }
}

// Alone or between others, a sample draws the same.
TEST_P(RandomUniform, DoesNotDependOnTheBatch) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::PagedCache both(*backend, ref::random_rows({3, 5, 40, 33}, 2, 4, 1));
  const ref::PagedCache alone(*backend, ref::random_rows({40, 33}, 2, 4, 2));
  const auto together = drawn(*backend, both, 48, {.numbers = {9, 7}, .tokens_seen = {5, 50}});
  const auto single = drawn(*backend, alone, 40, {.numbers = {7}, .tokens_seen = {50}});
  EXPECT_EQ(ref::slice(together, 2 * 48, 40), ref::slice(single, 0, 40));
  EXPECT_EQ(ref::slice(together, 3 * 48, 33), ref::slice(single, 40, 33));
}

// Committed results of random eviction hang on these bits.
TEST(HashUniform, StaysWhatItWas) {
  EXPECT_EQ(hash_uniform(1, 2, 3, 4, 5), 0x1.4f7c78p-3f);
  EXPECT_EQ(hash_uniform(0, 0), 0x1.67344p-5f);
  EXPECT_EQ(hash_uniform(~uint64_t{0}, ~0u, ~0u, ~0u, ~0u), 0x1.1276e8p-1f);
}

TEST(HashUniform, DependsOnEveryArgumentAndOnNothingElse) {
  EXPECT_EQ(hash_uniform(1, 2, 3, 4, 5), hash_uniform(1, 2, 3, 4, 5));
  const std::set<float> values = {hash_uniform(1, 2, 3, 4, 5), hash_uniform(2, 2, 3, 4, 5),
                                  hash_uniform(1, 3, 3, 4, 5), hash_uniform(1, 2, 4, 4, 5),
                                  hash_uniform(1, 2, 3, 5, 5), hash_uniform(1, 2, 3, 4, 6)};
  EXPECT_EQ(values.size(), 6u);
}

TEST(HashUniform, HasTheMeanOfAUniformNumber) {
  double sum = 0;
  for (uint32_t i = 0; i < 10000; ++i) {
    const float value = hash_uniform(9, i);
    ASSERT_TRUE(value >= 0.0f && value < 1.0f);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 5 * 0.2887 / 100);  // five standard errors
}

}  // namespace
}  // namespace kv
