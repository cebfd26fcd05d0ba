#include <gtest/gtest.h>

#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"knorm", {0x6361b93c89bf121c, 0x56ccad337e47a3be}};

// Keys (3,4) (0,1) (1,1) (2,0): lengths 5, 1, 1.41, 2.
Event event_of(const Options& options, int keep) {
  const auto backend = make_backend("cpu");
  TinySample sample;
  sample.keys = {{3, 4, 0, 1, 1, 1, 2, 0, 1, 0}};
  sample.values = sample.queries = sample.pre_rope_queries = sample.keys;
  TinySource source(*backend, tiny_info(1, 1, 1, 2), {sample});
  const PolicyRun run = run_policy(source, *backend, one_shot_run("knorm", options, {0}, {5}, {keep}));
  EXPECT_EQ(run.events.size(), 1u);
  return run.events.at(0);
}

TEST(Knorm, KeepsTheShortestKeys) {
  const Event event = event_of({}, 2);
  EXPECT_EQ(event.scores, (std::vector<float>{-5, -1, -1.41421356F, -2}));
  EXPECT_EQ(event.kept, (std::vector<int32_t>{1, 2}));
}

TEST(Knorm, ProtectsWhatIsAsked) {
  EXPECT_EQ(event_of({{"sinks", "1", ""}}, 2).kept, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(event_of({{"recent", "1", ""}}, 2).kept, (std::vector<int32_t>{1, 3}));
}

KV_OVER_BACKENDS(Runs, KnormOn);

TEST_P(KnormOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agrees(*backend, "knorm", {}, naive_knorm(0, 0));
  expect_agrees(*backend, "knorm", {}, naive_knorm(0, 0), {.interval = 0});
  expect_agrees(*backend, "knorm", {{"sinks", "4", ""}, {"recent", "2", ""}}, naive_knorm(4, 2));
}

TEST(Knorm, RefusesLessThanItProtects) {
  expect_refused("knorm", {{"sinks", "4", ""}, {"recent", "1", ""}}, 4, 2,
                 "knorm: budget 4 is less than the 5 protected entries");
}

}  // namespace
}  // namespace kv::ref
