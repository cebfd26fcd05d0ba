#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"h2o", {0xb616d81877ce0c98, 0x89071aff04d9dcaf}};

using Kept = std::vector<std::vector<int32_t>>;

// Weights 1 1 4 1: each query spreads its attention in these proportions over what it sees.
//   query 0: (1)   query 1: (1/2 1/2)   query 2: (1/6 1/6 4/6)     acc = 1.667 0.667 0.667
// Event 1 (B = 2, L = 1): entry 2 is protected; entry 0 has the larger sum.                            keeps 0 2
//   query 3 over entries 0 2 3: (1/6 4/6 1/6)                      acc = 1.833 1.333 0.167
// Event 2: entry 3 is protected, entry 0 stays.                                                        keeps 0 3
TEST(H2O, AccumulatesAttention) { EXPECT_EQ(kept_by("h2o", {}, {{1, 1, 4, 1, 1}}, 2, 1), (Kept{{0, 2}, {0, 3}})); }

// By age, event 1 compares 1.667/3 = 0.556 with 0.667/2 = 0.333; event 2 compares entry 0's 1.833/4 = 0.458 with
// entry 2's 1.333/2 = 0.667.
TEST(H2O, AgeNormalisationFreesYoungEntries) {
  EXPECT_EQ(kept_by("h2o", {{"normalize", "age", ""}}, {{1, 1, 4, 1, 1}}, 2, 1), (Kept{{0, 2}, {2, 3}}));
}

// Weights 1 1 4 1 1, B = 4: after token 4 acc = 1.935 0.935 1.738 0.268 0.125.
// block protects the newest L = 1, so entry 3 goes; original protects half of the budget, 3 and 4, so entry 1 goes.
TEST(H2O, OriginalProtectsHalfOfTheBudget) {
  EXPECT_EQ(kept_by("h2o", {}, {{1, 1, 4, 1, 1, 1}}, 4, 1), (Kept{{0, 1, 2, 4}}));
  EXPECT_EQ(kept_by("h2o", {{"mode", "original", ""}}, {{1, 1, 4, 1, 1, 1}}, 4, 1), (Kept{{0, 2, 3, 4}}));
}

TEST(H2O, OriginalPrunesAfterEveryToken) {
  EXPECT_EQ(make_policy("h2o", {{"mode", "original", ""}}).scorer->interval(256), 1);
  EXPECT_EQ(make_policy("h2o", {{"mode", "original", ""}}).scorer->interval(0), 0);
  EXPECT_EQ(make_policy("h2o", {}).scorer->interval(256), 256);
  // Interval 2 is asked; events come after tokens 2, 3 and 4.
  EXPECT_EQ(kept_by("h2o", {{"mode", "original", ""}}, {{1, 1, 4, 1, 1, 1}}, 2, 2).size(), 3u);
}

// One-shot, kept 4 of 5: half of them, 3 and 4, are recent; of 0 1 2 entry 1 has the smallest sum.
TEST(H2O, OneShotProtectsHalfOfTheKept) {
  EXPECT_EQ(kept_once("h2o", {}, {{1, 1, 4, 1, 1, 1}}, 4), (std::vector<int32_t>{0, 2, 3, 4}));
  EXPECT_EQ(kept_once("h2o", {{"recent", "1", ""}}, {{1, 1, 4, 1, 1, 1}}, 4), (std::vector<int32_t>{0, 1, 2, 4}));
}

// Head 0 favours entry 1, head 1 entry 2; sums after 4 tokens, weights (1 9 1 1) and (1 1 5 1):
//   head 0: query 1 (.1 .9), 2 (.09 .82 .09), 3 (.08 .75 .08 .08)    head 1: (.5 .5), (.14 .14 .71), (.13 .13 .63 .13)
//   entry 1: (2.47 + 0.77)/2 = 1.62, entry 2: (0.17 + 1.34)/2 = 0.76, entry 0: (1.27 + 1.77)/2 = 1.52.
TEST(H2O, AveragesOverTheGroup) {
  EXPECT_EQ(kept_once("h2o", {{"recent", "0", ""}}, {{1, 9, 1, 1, 1}, {1, 1, 5, 1, 1}}, 1), (std::vector<int32_t>{1}));
  EXPECT_EQ(kept_once("h2o", {{"recent", "0", ""}}, {{1, 9, 1, 1, 1}, {1, 1, 5, 1, 1}}, 2),
            (std::vector<int32_t>{0, 1}));
}

// Only query 2 counts at event 1: entries 0 and 1 have 1/6 each, the newer stays. Query 3 over entries 1 2 3 gives
// 1/6 4/6 1/6, so event 2 compares 1/6 + 1/6 with 4/6 + 4/6.
TEST(H2O, MissesTheQueriesThatAreNoLongerCached) {
  EXPECT_EQ(kept_by("h2o", {{"queries", "1", ""}}, {{1, 1, 4, 1, 1}}, 2, 1), (Kept{{1, 2}, {2, 3}}));
}

TEST(H2O, CachingEveryQueryIsTheRunningSum) {
  const std::vector<std::vector<float>> weights = {{1, 1, 4, 1, 2, 1, 3, 1}};
  EXPECT_EQ(kept_by("h2o", {{"queries", "4", ""}}, weights, 3, 1), kept_by("h2o", {}, weights, 3, 1));
}

// Sequence 0 has had its first event when sequence 1 has its own: one counts its whole block, one the newest query.
// What a sequence waits for gives it nothing.
TEST(H2O, CountsCachedQueriesBySequence) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = tiny_info(1, 2, 1, 8);
  TinySource source(*backend, info, {random_sample(info, 12, 1), random_sample(info, 12, 2)});
  const auto run = [&](const std::vector<int32_t>& samples, const std::vector<std::vector<int32_t>>& counts) {
    RunArgs args{.policy = "h2o", .options = {{"queries", "2", ""}, {"recent", "1", ""}}, .samples = samples};
    args.budget = 4;
    args.interval = 2;
    for (const std::vector<int32_t>& step : counts) {
      Step& next = args.schedule.emplace_back(Step{.counts = step, .keep = {}});
      for (const int32_t count : step) next.keep.push_back(count == 3 ? 4 : -1);
    }
    for (size_t s = 0; s < samples.size(); ++s) args.lengths.push_back(12);
    std::vector<std::vector<int32_t>> kept;
    for (const Event& event : run_policy(source, *backend, args).events) {
      if (event.sequence + 1 == std::ssize(samples)) kept.push_back(event.kept);
    }
    return kept;
  };
  const auto together = run({0, 1}, {{2, 2}, {3, 2}, {3, 3}, {1, 0}, {3, 3}, {0, 2}});
  EXPECT_EQ(together.size(), 2u);
  EXPECT_EQ(together, run({1}, {{2}, {2}, {3}, {3}, {2}}));
}

TEST(H2O, RefusesToCacheMoreQueriesThanThereAre) {
  expect_refused("h2o", {{"queries", "81", ""}}, 64, 16,
                 "h2o: queries = 81: expected at most 80, the tokens before the first event, or 0");
  make_policy("h2o", {{"queries", "80", ""}}).scorer->check_budget(64, 16);
}

KV_OVER_BACKENDS(Runs, H2OOn);

TEST_P(H2OOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int queries : {1, 5, 12, 30, 36}) {
    expect_agrees(*backend, "h2o", {{"queries", fmt::format("{}", queries), ""}},
                  naive_cached_queries(24, 12, queries));
  }
  expect_agrees(*backend, "h2o", {}, naive_accumulated(false, 12));
  expect_agrees(*backend, "h2o", {{"normalize", "age", ""}}, naive_accumulated(true, 12));
  expect_agrees(*backend, "h2o", {{"recent", "3", ""}}, naive_accumulated(false, 3));
  expect_agrees(*backend, "h2o", {{"mode", "original", ""}}, naive_accumulated(false, 12));
  expect_agrees(*backend, "h2o", {}, naive_accumulated(false, 12), {.interval = 0});
}

TEST(H2O, RefusesABudgetOfTheInterval) {
  expect_refused("h2o", {}, 256, 256, "h2o: budget 256 must exceed the interval 256");
  expect_refused("h2o", {{"recent", "300", ""}}, 256, 64,
                 "h2o: budget 256 must exceed the newest entries protected, 300");
  make_policy("h2o", {{"recent", "8", ""}}).scorer->check_budget(64, 64);
  make_policy("h2o", {{"mode", "original", ""}}).scorer->check_budget(64, 64);
}

TEST(H2O, RefusesAnUnknownMode) {
  expect_bad_option("h2o", {{"mode", "blocks", ""}}, "h2o: mode = blocks: expected block | original");
}

}  // namespace
}  // namespace kv::ref
