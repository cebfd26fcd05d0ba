#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"r-kv", {0xb49f206bc7ac2135, 0xd1525305f9c7ffb8}};

// Five keys, two pairs of near duplicates among them, and a sixth token that ends the sequence; every query looks along
// (1, 0). ρ = 0.253629 0.217028 0.171972 0.183687 0.173683: entry 0 is the most redundant, 2 the least.
Event vector_event(const Options& options, int keep) {
  const auto backend = make_backend("cpu");
  TinySample sample;
  sample.keys = {{1, 0, 0.9f, 0.1f, 0, 1, 0.1f, 0.9f, 1, 0.05f, 0, 0}};
  sample.values = sample.keys;
  sample.queries = {{5, 0, 5, 0, 5, 0, 5, 0, 5, 0, 5, 0}};
  sample.pre_rope_queries = sample.queries;
  TinySource source(*backend, tiny_info(1, 1, 1, 2), {sample});
  const PolicyRun run = run_policy(source, *backend, one_shot_run("r-kv", options, {0}, {6}, {keep}));
  EXPECT_EQ(run.events.size(), 1u);
  return run.events.at(0);
}

Options options(const std::string& lambda) {
  return {{"lambda", lambda, ""}, {"window", "1", ""}, {"kernel", "1", ""}};
}

// λ = 0 ranks by −ρ alone. Entry 4 is the window.
TEST(RKV, ScoresRedundancyAsTheTestVector) {
  const Event event = vector_event(options("0"), 3);
  const double rho[] = {0.253629, 0.217028, 0.171972, 0.183687};
  for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(event.scores[j], -rho[j], 1e-6);
  EXPECT_EQ(event.kept, (std::vector<int32_t>{2, 3, 4}));
}

// λ = 1 ranks by attention: the query looks along the keys' first axis, 1 0.9 0 0.1.
TEST(RKV, WithAllWeightOnAttentionIsSnapKV) {
  const Event event = vector_event(options("1"), 3);
  EXPECT_EQ(event.kept, (std::vector<int32_t>{0, 1, 4}));
}

KV_OVER_BACKENDS(Runs, RKVOn);

TEST_P(RKVOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  // All weight on attention.
  expect_agrees(*backend, "r-kv", {{"lambda", "1", ""}}, naive_snapkv_decode(8, 7, NaivePool::kMax));
  const auto last = [](int) { return 1; };
  expect_agrees(*backend, "r-kv", {}, naive_r_kv(0.1, 8, 7, 0.5, last));
  expect_agrees(*backend, "r-kv", {}, naive_r_kv(0.1, 8, 7, 0.5, last), {.interval = 0});
  expect_agrees(*backend, "r-kv",
                {{"lambda", "0.07", ""}, {"window", "4", ""}, {"kernel", "3", ""}, {"threshold", "0.2", ""}},
                naive_r_kv(0.07, 4, 3, 0.2, last));
  expect_agrees(*backend, "r-kv",
                {{"retain", "last_percent", ""}, {"retain_ratio", "0.1", ""}, {"threshold", "0.1", ""}},
                naive_r_kv(0.1, 8, 7, 0.1, [](int n) { return std::max(1, static_cast<int>(n * 0.1f)); }));
}

TEST(RKV, ProtectsMoreThanItsWindowWhereAsked) {
  const auto newest = [](const char* recent) {
    return make_policy("r-kv", {{"recent", recent, ""}}).scorer->protects(64, 16).recent;
  };
  EXPECT_EQ(newest("0"), 8);
  EXPECT_EQ(newest("32"), 32);
  EXPECT_EQ(newest("-1"), 16);
}

TEST(RKV, RefusesABudgetOfTheWindow) {
  expect_refused("r-kv", {{"recent", "-1", ""}}, 16, 16,
                 "r-kv: budget 16 does not exceed the 16 newest entries protected");
  expect_refused("r-kv", {}, 8, 4, "r-kv: budget 8 does not exceed the window 8");
}

TEST(RKV, RefusesAWeightAboveOne) {
  expect_bad_option("r-kv", {{"lambda", "1.5", ""}}, "r-kv: lambda = 1.5: expected a number between 0 and 1");
  expect_bad_option("r-kv", {{"retain", "first", ""}}, "r-kv: retain = first: expected last | last_percent");
}

}  // namespace
}  // namespace kv::ref
