#include <gtest/gtest.h>

#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"lagkv", {0xdab35988a7673305, 0x62ea9182436956ed}};

// A sink, two partitions of two and a tail of one (tests/kernels/lag_relative_test.cpp has the arithmetic): token 2
// spreads wider than token 1 in the range of tokens 3 and 4. The seventh token ends the sequence.
Event event_of(const Options& options, int keep) {
  const auto backend = make_backend("cpu");
  TinySample sample;
  sample.keys = {{9, 9, 1, 2, 2, 0, 0, 4, 2, 0, 7, 7, 0, 0}};
  sample.values = sample.queries = sample.pre_rope_queries = sample.keys;
  TinySource source(*backend, tiny_info(1, 1, 1, 2), {sample});
  const PolicyRun run = run_policy(source, *backend, one_shot_run("lagkv", options, {0}, {7}, {keep}));
  EXPECT_EQ(run.events.size(), 1u);
  return run.events.at(0);
}

const Options kTiny = {{"sinks", "1", ""}, {"lag", "2", ""}};

TEST(LagKV, RanksWithinAPartitionAndKeepsWhatNothingFollows) {
  const Event event = event_of(kTiny, 5);
  EXPECT_EQ(event.scores, (std::vector<float>{1, 0, 0.5F, 1, 1, 1}));
  EXPECT_EQ(event.kept, (std::vector<int32_t>{0, 2, 3, 4, 5}));
}

// Four entries score 1; of equals the newer stay.
TEST(LagKV, KeepsTheNewestOfWhatCannotAllStay) { EXPECT_EQ(event_of(kTiny, 3).kept, (std::vector<int32_t>{3, 4, 5})); }

TEST(LagKV, KeepsSinksAndTheNewestOfAShortContext) {
  EXPECT_EQ(event_of({{"sinks", "1", ""}, {"lag", "3", ""}}, 3).kept, (std::vector<int32_t>{0, 4, 5}));
}

KV_OVER_BACKENDS(Runs, LagKVOn);

TEST_P(LagKVOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  const Options ranked = {{"sinks", "2", ""}, {"lag", "8", ""}};
  expect_agrees(*backend, "lagkv", ranked, naive_lagkv(2, 8, true));
  expect_agrees(*backend, "lagkv", ranked, naive_lagkv(2, 8, true), {.interval = 0});
  const Options shares = {{"sinks", "2", ""}, {"lag", "8", ""}, {"cross", "yes", ""}};
  expect_agrees(*backend, "lagkv", shares, naive_lagkv(2, 8, false));
  expect_agrees(*backend, "lagkv", {}, naive_lagkv(4, 128, true));
}

TEST(LagKV, RefusesAPartitionThatIsNone) {
  expect_bad_option("lagkv", {{"lag", "0", ""}}, "lagkv: lag = 0: expected at least 1");
  expect_bad_option("lagkv", {{"lag", "2049", ""}}, "lagkv: lag = 2049: expected at most 2048");
}

}  // namespace
}  // namespace kv::ref
