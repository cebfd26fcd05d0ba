#include "harness/ranks/scaling.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "harness/run_times.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

// 0 takes 5, 1 takes 4, then 1 takes 3 at 4, 0 takes 2 at 5: they end at 7 and 7.
TEST(Scaling, WhoIsFreeTakesTheNextPiece) {
  const std::vector<Piece> pieces = {{0, 5}, {0, 4}, {0, 3}, {0, 2}};
  const ScalingEstimate two = estimate_scaling(pieces, {}, 2);
  EXPECT_DOUBLE_EQ(two.seconds, 7);
  EXPECT_DOUBLE_EQ(two.work, 14);
  EXPECT_DOUBLE_EQ(two.waiting, 0);
  const ScalingEstimate three = estimate_scaling(pieces, {}, 3);  // 5, 4 and 3 + 2
  EXPECT_DOUBLE_EQ(three.seconds, 5);
  EXPECT_DOUBLE_EQ(three.waiting, 1);
  EXPECT_DOUBLE_EQ(estimate_scaling(pieces, {}, 1).seconds, 14);
}

TEST(Scaling, NoRanksShortenTheLongestPiece) {
  const std::vector<Piece> pieces = {{0, 9}, {0, 1}};
  const ScalingEstimate estimate = estimate_scaling(pieces, {.start = 2}, 1000);
  EXPECT_DOUBLE_EQ(estimate.seconds, 11);
  EXPECT_DOUBLE_EQ(estimate.waiting, 8 + 998 * 9);
  EXPECT_DOUBLE_EQ(estimate.start, 2000);
}

// Each of two ranks opens the second model.
TEST(Scaling, EveryRankOpensItsModels) {
  const std::vector<Piece> pieces = {{0, 3}, {0, 3}, {1, 3}, {1, 3}};
  const ScalingEstimate estimate = estimate_scaling(pieces, {.start = 1, .open = 2, .assembly = 4}, 2);
  EXPECT_DOUBLE_EQ(estimate.seconds, 1 + 3 + 2 + 3 + 4);
  EXPECT_DOUBLE_EQ(estimate.open, 4);
  EXPECT_DOUBLE_EQ(estimate.assembly, 8);
  EXPECT_DOUBLE_EQ(estimate.all(),
                   estimate.work + estimate.start + estimate.open + estimate.waiting + estimate.assembly);
}

TEST(RunTimes, ReadWhatTheyWrote) {
  const RunTimes times{.start = 1.5, .open = 0.25, .assembly = 0.125, .bytes = 77, .workloads = {{"m/d", 3, {1, 2.5}}}};
  const RunTimes read = run_times_from(to_json(times), "file");
  EXPECT_EQ(to_json(read), to_json(times));
  EXPECT_EQ(read.workloads[0].seconds, (std::vector<double>{1, 2.5}));
}

TEST(RunTimes, RefuseOthers) {
  const nlohmann::ordered_json good = to_json({.workloads = {{"m/d", 3, {1}}}});
  const auto refusal = [](const nlohmann::ordered_json& json) {
    return test::user_error([&] { run_times_from(json, "file"); });
  };
  for (const char* key : {"start", "open", "assembly", "bytes", "workloads"}) {
    nlohmann::ordered_json bad = good;
    bad.erase(key);
    EXPECT_TRUE(refusal(bad).starts_with("file: times: ")) << key;
    bad[key] = "none";
    EXPECT_TRUE(refusal(bad).starts_with("file: times: ")) << key;
  }
  nlohmann::ordered_json negative = good;
  negative["workloads"][0]["seconds"][0] = -1;
  EXPECT_EQ(refusal(negative), "file: times: a time below 0");
}

}  // namespace
}  // namespace kv
