#include <gtest/gtest.h>

#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"tova", {0xd18b9473635f6aa5, 0xef0ca834a69d260d}};

using Kept = std::vector<std::vector<int32_t>>;

// Only the newest query counts. Weights 5 1 3 1 1, B = 2, L = 1: event 1 (entries 0 1 2) gives 5/9 1/9 and protects 2;
// event 2 (entries 0 2 3) gives 5/9 3/9 and protects 3; so event 3.
TEST(Tova, KeepsWhatTheNewestQueryAttendsTo) {
  EXPECT_EQ(kept_by("tova", {}, {{5, 1, 3, 1, 1, 1}}, 2, 1), (Kept{{0, 2}, {0, 3}, {0, 4}}));
}

// Heads (6 1 4 1 1) and (1 1 4 1 1): entry 0 has (6/13 + 1/8)/2 = 0.293, entry 2 (4/13 + 4/8)/2 = 0.404.
TEST(Tova, AveragesOverQueryHeads) {
  EXPECT_EQ(kept_once("tova", {}, {{6, 1, 4, 1, 1, 1}, {1, 1, 4, 1, 1, 1}}, 2), (std::vector<int32_t>{2, 4}));
}

TEST(Tova, KeepsOneSetALayer) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = tiny_info(1, 4, 2, 8);
  TinySource source(*backend, info, {random_sample(info, 40, 5)});
  const PolicyRun run = run_policy(source, *backend, decode_run("tova", {}, {0}, {40}, 10, 5));
  ASSERT_GE(run.events.size(), 4u);
  for (size_t i = 0; i < run.events.size(); i += 2) EXPECT_EQ(run.events[i].kept, run.events[i + 1].kept);
}

KV_OVER_BACKENDS(Runs, TovaOn);

TEST_P(TovaOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agrees(*backend, "tova", {}, naive_tova());
  expect_agrees(*backend, "tova", {}, naive_tova(), {.interval = 1});
  expect_agrees(*backend, "tova", {}, naive_tova(), {.interval = 0});
}

TEST(Tova, RefusesNoBudget) { expect_refused("tova", {}, 0, 1, "tova: budget 0 must be at least 1"); }

}  // namespace
}  // namespace kv::ref
