#include <gtest/gtest.h>

#include "kernels/error.h"
#include "sim/policy/policy.h"
#include "tests/support/policy_runs.h"

namespace kv::ref {
namespace {

// Budgets of one sequence whose heads all hold `tokens` entries; pyramid looks at lengths only.
std::vector<int32_t> budgets(int layers, int kv_heads, int tokens, int kept, const Options& options = {}) {
  const auto backend = make_backend("cpu");
  const std::vector<int32_t> lengths(static_cast<size_t>(kv_heads), tokens);
  const std::vector<ScoredLayer> scored(static_cast<size_t>(layers), {.lengths = lengths});
  const uint8_t due = 1;
  const int64_t total = int64_t{kept} * layers * kv_heads;
  std::vector<int32_t> counts(static_cast<size_t>(layers * kv_heads), -1);
  make_allocation("pyramid", options)
      ->allocate({.backend = *backend,
                  .sequences = 1,
                  .kv_heads = kv_heads,
                  .kept = kept,
                  .sequences_due = std::span(&due, 1),
                  .tokens_seen = std::span(&tokens, 1),
                  .totals = std::span(&total, 1),
                  .layers = scored},
                 counts);
  return counts;
}

// kvpress: T = 4096, 80 % removed, 32 layers: κ = 819, last 819/20 = 40.95, first 2·819 − 40.95 = 1597.05.
TEST(Pyramid, FallsLinearlyAsPublished) {
  const std::vector<int32_t> counts = budgets(32, 1, 4096, 819);
  EXPECT_EQ(counts.front(), 1597);
  EXPECT_EQ(counts.back(), 41);
  for (size_t layer = 1; layer < counts.size(); ++layer) {
    EXPECT_NEAR(counts[layer - 1] - counts[layer], (1597.05 - 40.95) / 31, 1);
  }
}

// T = 4096, half removed: 2·2048 − 102.4 = 3993.6 fits into 4096 − 8.
TEST(Pyramid, HalfOfTheContext) {
  const std::vector<int32_t> counts = budgets(32, 1, 4096, 2048);
  EXPECT_EQ(counts.front(), 3994);
  EXPECT_EQ(counts.back(), 102);
}

// κ = 60 of 100, β 20: last 3, first 117 exceeds 100 − 8 = 92; so 92 and 28, and 60 in the middle.
TEST(Pyramid, TheFirstLayerTakesNoMoreThanThereIs) {
  EXPECT_EQ(budgets(3, 2, 100, 60), (std::vector<int32_t>{92, 92, 60, 60, 28, 28}));
}

TEST(Pyramid, OneLayerGetsEverything) { EXPECT_EQ(budgets(1, 2, 400, 200), (std::vector<int32_t>{200, 200})); }

// κ = 100: the last layer would get 5, under the window of 8.
TEST(Pyramid, RefusesABudgetWhoseTopIsThinnerThanTheWindow) {
  try {
    budgets(4, 1, 1000, 100);
    FAIL() << "not refused";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "pyramid: of a mean budget of 100 with beta 20 the last layer gets 5.0 entries, expected at least the "
                 "window 8 and no more than the first layer's 195.0");
  }
  EXPECT_EQ(budgets(4, 1, 1000, 100, {{.key = "window", .text = "5", .where = ""}}).back(), 5);
}

}  // namespace
}  // namespace kv::ref
