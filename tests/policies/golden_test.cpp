#include <gtest/gtest.h>

#include <cmath>

#include "kernels/error.h"
#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"golden", {0x91a8ba1ff6f3e46b}};

using Kept = std::vector<std::vector<int32_t>>;

// Queries 0 to 4 see weights 1 3 2 1 1 1, query 5 sees 50 1 1 1 1 1. B = 2, L = 1.
Kept kept_of_late_query(const Options& options) {
  const auto backend = make_backend("cpu");
  TinySample sample = weighted_sample({{1, 3, 2, 1, 1, 1}});
  const std::vector<float> late = {50, 1, 1, 1, 1, 1};
  for (size_t j = 0; j < 6; ++j) sample.keys[0][2 * j + 1] = std::log(late[j]);
  sample.queries[0][10] = 0;
  sample.queries[0][11] = std::sqrt(2.0f);
  TinySource source(*backend, tiny_info(1, 1, 1, 2), {sample});
  Kept kept;
  for (Event& event : run_policy(source, *backend, decode_run("golden", options, {0}, {6}, 2, 1)).events) {
    kept.push_back(std::move(event.kept));
  }
  return kept;
}

// The newest entry is protected. Event 1 (entries 0 1 2): query 5 will give entry 0 50/55, more than any query gives
// entry 1 (at most 3/7): 0 stays, and so it does at events 2 and 3.
TEST(Golden, KeepsWhatALateQueryWillNeed) { EXPECT_EQ(kept_of_late_query({}), (Kept{{0, 2}, {0, 3}, {0, 4}})); }

// With a horizon of one block, event 1 sees query 3 (weights 1/7 against 3/7): 1 stays over 0; event 2 sees query 4:
// 1 stays over 2. Event 3 sees query 5, which gives 1 and 3 the same 1/55: the newer one stays.
TEST(Golden, AShortHorizonMissesIt) {
  EXPECT_EQ(kept_of_late_query({{"horizon", "1", ""}}), (Kept{{1, 2}, {1, 3}, {3, 4}}));
}

KV_OVER_BACKENDS(Runs, GoldenOn);

TEST_P(GoldenOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agrees(*backend, "golden", {}, naive_golden(12, NaivePool::kAverage, 0));
  expect_agrees(*backend, "golden", {{"horizon", "1", ""}}, naive_golden(12, NaivePool::kAverage, 1));
  expect_agrees(*backend, "golden", {{"queries", "max", ""}}, naive_golden(12, NaivePool::kMax, 0));
  expect_agrees(*backend, "golden", {{"queries", "max", ""}, {"horizon", "2", ""}},
                naive_golden(12, NaivePool::kMax, 2));
  expect_agrees(*backend, "golden", {{"queries", "max", ""}, {"group", "max", ""}},
                naive_golden(12, NaivePool::kMax, 0, NaivePool::kMax));
}

TEST(Golden, RefusesTheLargestHeadOfAMeanOverQueries) {
  expect_bad_option("golden", {{"group", "max", ""}}, "golden: group = max: expected with queries: max only");
}

TEST(Golden, IsAnOracle) {
  EXPECT_TRUE(make_policy("golden", {}).oracle());
  EXPECT_FALSE(make_policy("h2o", {}).oracle());
}

TEST(Golden, NeedsTheFullPass) {
  const auto backend = make_backend("cpu");
  TinySource source(*backend, tiny_info(1, 1, 1, 2), {weighted_sample({{1, 1, 1, 1, 1, 1}})});
  Policy policy = make_policy("golden", {});
  const std::vector<int32_t> ids(6, 0), lengths = {6};
  const std::span<const int32_t> sequences[] = {ids};
  const Schedule schedule = decode_schedule(lengths, 2, 1);
  EXPECT_THROW(replay({.backend = *backend,
                       .source = source,
                       .policy = policy,
                       .sequences = sequences,
                       .schedule = schedule,
                       .budget = 2,
                       .interval = 1,
                       .sample_numbers = {},
                       .observers = {}}),
               UserError);
}

TEST(Golden, RefusesWhatItsBlocksCannotServe) {
  expect_refused("golden", {}, 100, 64, "golden: budget 100 must be a multiple of the interval 64");
  expect_refused("golden", {}, 64, 64, "golden: budget 64 must exceed the interval 64");
  expect_refused("golden", {}, 64, 0,
                 "golden: one-shot compression is not covered (expected decode-time pruning with an interval)");
}

}  // namespace
}  // namespace kv::ref
