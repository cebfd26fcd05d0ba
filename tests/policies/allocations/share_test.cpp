#include <gtest/gtest.h>

#include "sim/policy/allocation.h"
#include "sim/policy/capacity.h"
#include "tests/support/backends.h"

namespace kv {
namespace {

// One sequence of two layers and two heads.
std::vector<int32_t> counts(const std::vector<int32_t>& lengths, int64_t total, const Protection& protection,
                            const Capacity* capacity = nullptr) {
  const auto backend = make_backend("cpu");
  const std::vector<ScoredLayer> layers = {{.lengths = std::span(lengths).first(2)},
                                           {.lengths = std::span(lengths).last(2)}};
  const uint8_t due = 1;
  const int32_t seen = 1000;
  std::vector<int32_t> result(4, -1);
  make_allocation("share", {})
      ->allocate({.backend = *backend,
                  .sequences = 1,
                  .kv_heads = 2,
                  .kept = static_cast<int>(total / 4),
                  .protection = protection,
                  .sequences_due = std::span(&due, 1),
                  .tokens_seen = std::span(&seen, 1),
                  .totals = std::span(&total, 1),
                  .capacity = capacity,
                  .layers = layers},
                 result);
  return result;
}

// Beyond 2 sinks and 8 newest there are 90, 40, 20 and 0, of which 30 leave: a fifth each.
TEST(Share, TakesTheSameShareOfWhatIsBeyondTheProtected) {
  EXPECT_EQ(counts({100, 50, 30, 10}, 160, {.sinks = 2, .recent = 8}), (std::vector<int32_t>{82, 42, 26, 10}));
}

// A seventh of 35 and 14 is 5 and 2; the head of one unprotected entry loses it.
TEST(Share, TakesOneWhereThereIsAnything) {
  EXPECT_EQ(counts({45, 24, 11, 10}, 82, {.recent = 10}), (std::vector<int32_t>{40, 22, 10, 10}));
}

// More is to leave than is unprotected, 10: half of everything.
TEST(Share, TakesTheProtectedWhereNothingElseIsLeft) {
  EXPECT_EQ(counts({20, 10, 10, 10}, 25, {.recent = 10}), (std::vector<int32_t>{10, 5, 5, 5}));
}

// A tenth of the 90, 41, 20 and 9 entries beyond a window of 10, rounded down, whatever the total says.
TEST(Share, OfACapacityIsThatOfEveryHeadByItself) {
  const Capacity capacity{.entries = 30, .drop = 0.1, .window = 10};
  EXPECT_EQ(counts({100, 51, 30, 19}, 185, {.recent = 10}, &capacity), (std::vector<int32_t>{91, 47, 28, 19}));
}

}  // namespace
}  // namespace kv
