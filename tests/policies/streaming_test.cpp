#include <gtest/gtest.h>

#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"streaming", {0xdab35988a7673305, 0x62ea9182436956ed}};

using Kept = std::vector<std::vector<int32_t>>;

// B = 3, L = 1, one sink: after token 3 the cache holds 0 1 2 3 and keeps the sink and the newest two; so after
// token 4. Token 5 ends the sequence: no event.
TEST(Streaming, KeepsTheSinkAndTheNewestTwo) {
  EXPECT_EQ(kept_by("streaming", {{"sinks", "1", ""}}, {{9, 1, 9, 1, 1, 1}}, 3, 1), (Kept{{0, 2, 3}, {0, 3, 4}}));
}

TEST(Streaming, WithoutSinksIsASlidingWindow) {
  EXPECT_EQ(kept_by("streaming", {{"sinks", "0", ""}}, {{9, 1, 9, 1, 1, 1}}, 3, 1), (Kept{{1, 2, 3}, {2, 3, 4}}));
}

TEST(Streaming, CompressesOnceToSinkAndNewest) {
  EXPECT_EQ(kept_once("streaming", {{"sinks", "1", ""}}, {{1, 1, 1, 1, 1, 1}}, 3), (std::vector<int32_t>{0, 3, 4}));
}

KV_OVER_BACKENDS(Runs, StreamingOn);

TEST_P(StreamingOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agrees(*backend, "streaming", {}, naive_streaming(4, 24));
  expect_agrees(*backend, "streaming", {{"sinks", "7", ""}}, naive_streaming(7, 24), {.interval = 0});
}

TEST(Streaming, RefusesABudgetOfItsSinks) {
  expect_refused("streaming", {}, 4, 2, "streaming: budget 4 does not exceed the 4 sinks");
  expect_bad_option("streaming", {{"sinks", "-1", "s.yaml:3:7"}},
                    "s.yaml:3:7: streaming: sinks = -1: expected at least 0");
}

}  // namespace
}  // namespace kv::ref
