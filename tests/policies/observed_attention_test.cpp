#include <gtest/gtest.h>

#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"observed-attention", {0x53b59962f17fcd69, 0x019b971646ff595d}};

using Kept = std::vector<std::vector<int32_t>>;

// Weights 1 1 4 1, B = 2, L = 1; sums as in H2O's micro-trace, divided by the queries that saw the entry:
//   event 1: 1.667/3 = 0.556, 0.667/2 = 0.333, 0.667/1 = 0.667                  keeps 0 2
//   event 2 (entries 0 2 3): 1.833/4 = 0.458, 1.333/2 = 0.667, 0.167/1 = 0.167  keeps 0 2: the newest is not protected
TEST(ObservedAttention, DividesByTheQueriesThatSawTheEntry) {
  EXPECT_EQ(kept_by("observed-attention", {}, {{1, 1, 4, 1, 1}}, 2, 1), (Kept{{0, 2}, {0, 2}}));
}

// Entry 0 alone at query 0: its mean after two queries of weights 1 3 is (1 + 1/4)/2 = 0.625, entry 1's 3/4.
TEST(ObservedAttention, KeepsTheBetterMean) {
  EXPECT_EQ(kept_once("observed-attention", {}, {{1, 3, 1}}, 1), (std::vector<int32_t>{1}));
}

KV_OVER_BACKENDS(Runs, ObservedAttentionOn);

TEST_P(ObservedAttentionOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agrees(*backend, "observed-attention", {}, naive_accumulated(true, 0));
  expect_agrees(*backend, "observed-attention", {}, naive_accumulated(true, 0), {.interval = 0});
}

}  // namespace
}  // namespace kv::ref
