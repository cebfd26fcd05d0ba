#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"keydiff", {0xa2142d2236774a66, 0xec91e9818710b7a7}};

// Keys (1,0) (2,0) (0,1) (3,0), unit keys (1,0) (1,0) (0,1) (1,0), anchor (3,1)/4:
// scores −3/√10 −3/√10 −1/√10 −3/√10.
Event event_of(const Options& options, int keep) {
  const auto backend = make_backend("cpu");
  TinySample sample;
  sample.keys = {{1, 0, 2, 0, 0, 1, 3, 0, 1, 0}};
  sample.values = sample.queries = sample.pre_rope_queries = sample.keys;
  TinySource source(*backend, tiny_info(1, 1, 1, 2), {sample});
  const PolicyRun run = run_policy(source, *backend, one_shot_run("keydiff", options, {0}, {5}, {keep}));
  EXPECT_EQ(run.events.size(), 1u);
  return run.events.at(0);
}

TEST(KeyDiff, KeepsTheKeyThatPointsElsewhere) {
  const Event event = event_of({}, 1);
  const double scores[] = {-3 / std::sqrt(10.0), -3 / std::sqrt(10.0), -1 / std::sqrt(10.0), -3 / std::sqrt(10.0)};
  for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(event.scores[j], scores[j], 1e-6);
  EXPECT_EQ(event.kept, (std::vector<int32_t>{2}));
}

TEST(KeyDiff, ProtectsWhatIsAsked) {
  EXPECT_EQ(event_of({{"sinks", "1", ""}}, 2).kept, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(event_of({{"recent", "1", ""}}, 2).kept, (std::vector<int32_t>{2, 3}));
}

KV_OVER_BACKENDS(Runs, KeyDiffOn);

TEST_P(KeyDiffOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agrees(*backend, "keydiff", {}, naive_keydiff(0, 0));
  expect_agrees(*backend, "keydiff", {}, naive_keydiff(0, 0), {.interval = 0});
  expect_agrees(*backend, "keydiff", {{"sinks", "4", ""}, {"recent", "1", ""}}, naive_keydiff(4, 1));
}

TEST(KeyDiff, RefusesLessThanItProtects) {
  expect_refused("keydiff", {{"sinks", "4", ""}, {"recent", "1", ""}}, 4, 2,
                 "keydiff: budget 4 is less than the 5 protected entries");
}

}  // namespace
}  // namespace kv::ref
