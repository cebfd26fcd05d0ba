#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/error.h"
#include "tests/support/replayed.h"

namespace kv::test {
namespace {

// Two KV heads that attend to five entries in proportion to these weights, which add up to 15 in both: the importance
// of the first four, to the last query.
WithOutput two_heads(Backend& backend) {
  ref::TinySample sample{.queries = {{}}, .keys = {{}}, .values = {std::vector<float>(20, 1)}};
  for (const auto& [first, second] : {std::pair(1, 8), {2, 1}, {3, 1}, {4, 1}, {5, 4}}) {
    for (const int weight : {first, second}) {
      for (const float key : {std::log(static_cast<float>(weight)), 0.0F}) sample.keys[0].push_back(key);
      for (const float query : {std::sqrt(2.0F), 0.0F}) sample.queries[0].push_back(query);  // undoes 1/√head_dim
    }
  }
  sample.pre_rope_queries = sample.queries;
  return {backend, ref::tiny_info(1, 2, 2, 2), {sample}};
}

class BudgetSplitByHand : public ::testing::Test {
 protected:
  ReplayedCase make_case(
      ByPosition::Score score = [](int, int, int32_t position) { return static_cast<float>(position); },
      Protection protection = {}) {
    const int32_t length = 5, context = 4, keep = 2;
    ReplayedCase result{
        source_, *backend_, {tiny_sample(5)}, one_shot_schedule({&length, 1}, {&context, 1}, {&keep, 1})};
    result.decode_time = false;
    result.scorer = std::make_unique<ByPosition>(std::move(score), protection);
    return result;
  }
  static double ratio(const std::vector<Measured>& rows, const std::string& name, double x, int head) {
    const Measured* row = find(rows, name, x, 0, 0, head);
    return row ? row->value : std::nan("");
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  WithOutput source_ = two_heads(*backend_);
};

// The newest first: head 0 gains 4, 3, 2, 1 and head 1 gains 1, 1, 1, 8 of 21; its hull gains 2.75 four times.
//   4 of 8 entries  uniform 2 + 2 loses 3 + 9. Greedy takes 4 and 3, then opens head 1: the same split, 3 + 5.5 on the
//                   hulls. Best is all of head 1: 10 + 0. By the oracle's orders (4, 3, 2, 1 and 8, 1, 1, 1): 3 + 1,
//                   which loses 1 + 10.
//   2 of 8          uniform 1 + 1 loses 6 + 10, greedy 2 + 0 loses 3 + 11, which is optimal.
TEST_F(BudgetSplitByHand, LossesOfEverySplit) {
  auto replayed = make_case();
  const auto rows = measure(replayed, "budget_split", {{"points", "4", ""}});
  const std::map<std::string, std::pair<double, double>> expected = {{"split_loss_uniform", {12, 16}},
                                                                     {"split_loss_greedy", {12, 14}},
                                                                     {"split_loss_bound", {8.5, 14}},
                                                                     {"split_loss_exact", {10, 14}},
                                                                     {"split_loss_oracle_order", {11, 16}}};
  for (const auto& [name, losses] : expected) {
    EXPECT_NEAR(value(rows, name, 0.5), losses.first / 21, kRounded) << name;
    EXPECT_NEAR(value(rows, name, 0.75), losses.second / 21, kRounded) << name;
    EXPECT_EQ(value(rows, name, 0.0), 0) << name;
    EXPECT_NEAR(value(rows, name, 1.0), 1, kRounded) << name;
  }
  EXPECT_NEAR(value(rows, "split_gap_exact", 0.5), 0.2, kRounded);
  EXPECT_EQ(value(rows, "split_gap_exact", 0.75), 0);
  EXPECT_EQ(value(rows, "split_gap_exact", 0.0), 0);
  EXPECT_FALSE(find(rows, "local_ratio", 0.5, 0, 0, 0));
}

TEST_F(BudgetSplitByHand, LocalRatiosAreWhatEachHeadGivesUp) {
  auto replayed = make_case();
  const auto rows = measure(replayed, "budget_split", {{"points", "4", ""}, {"detail", "head", ""}});
  EXPECT_EQ(ratio(rows, "local_ratio", 0.5, 0), 0.5);
  EXPECT_EQ(ratio(rows, "local_ratio", 0.5, 1), 0.5);
  EXPECT_EQ(ratio(rows, "local_ratio_exact", 0.5, 0), 1);
  EXPECT_EQ(ratio(rows, "local_ratio_exact", 0.5, 1), 0);
  EXPECT_EQ(ratio(rows, "local_ratio", 0.75, 0), 0.5);
  EXPECT_EQ(ratio(rows, "local_ratio", 0.75, 1), 1);
}

// The sink leads the order, whatever its score: head 1 gains 8, 1, 1, 1 and head 0 gains 1, 4, 3, 2. Two entries: 8 and
// a gain of 2.75 on the hull of head 0, pooled of 1, 4, 3, 2 to 2.67, 2.67, 2.67, 2.
TEST_F(BudgetSplitByHand, ProtectedEntriesLeadTheOrder) {
  auto replayed = make_case([](int, int, int32_t position) { return position == 0 ? std::nanf("") : 1.0F * position; },
                            {.sinks = 1, .recent = 0});
  const auto rows = measure(replayed, "budget_split", {{"points", "4", ""}, {"detail", "head", ""}});
  EXPECT_EQ(ratio(rows, "local_ratio", 0.75, 0), 0.75);
  EXPECT_EQ(ratio(rows, "local_ratio", 0.75, 1), 0.75);
  EXPECT_NEAR(value(rows, "split_loss_greedy", 0.75), 12.0 / 21, kRounded);  // 9 + 3
  EXPECT_NEAR(value(rows, "split_loss_bound", 0.75), (10 - 8.0 / 3 + 3) / 21, kRounded);
}

TEST_F(BudgetSplitByHand, WithoutTheExactSolverThereIsNoExactRow) {
  auto replayed = make_case();
  const auto rows = measure(replayed, "budget_split", {{"solver", "hull", ""}, {"points", "2", ""}});
  EXPECT_NEAR(value(rows, "split_loss_greedy", 0.5), 12.0 / 21, kRounded);
  EXPECT_FALSE(find(rows, "split_loss_exact", 0.5));
  EXPECT_FALSE(find(rows, "split_gap_exact", 0.5));
}

TEST_F(BudgetSplitByHand, SaysWhyThereIsNoSplit) {
  const int32_t length = 5;
  ReplayedCase decode{source_, *backend_, {tiny_sample(5)}, decode_schedule({&length, 1}, 2, 2)};
  EXPECT_EQ(skipped(measure(decode, "budget_split"), "split_loss_greedy"), "a split needs one-shot compression");
  auto late = make_case();
  late.block = 8;  // begins before the event
  EXPECT_EQ(skipped(measure(late, "budget_split"), "split_loss_greedy"), "no query follows the event");
  EXPECT_THROW(make_metric("budget_split", {{"points", "0", ""}}), UserError);
}

// Two layers of two KV heads, two samples, in an order that has nothing to do with their importance.
class BudgetSplits : public ::testing::Test {
 protected:
  std::vector<Measured> run(const std::string& metric, std::vector<GivenParam> options) {
    const int32_t lengths[] = {60, 41}, contexts[] = {48, 32}, keep[] = {16, 8};
    ReplayedCase replayed{
        source_, *backend_, {tiny_sample(60), tiny_sample(41, 1)}, one_shot_schedule(lengths, contexts, keep)};
    replayed.decode_time = false;
    replayed.block = 4;
    replayed.scorer = std::make_unique<ByPosition>([](int layer, int row, int32_t position) {
      return static_cast<float>((position * 37 + row * 11 + layer) % 64);
    });
    options.push_back({"points", "10", ""});
    return measure(replayed, metric, std::move(options));
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  SourceInfo info_ = ref::tiny_info(2, 4, 2, 8);
  WithOutput source_{*backend_, info_, {ref::random_sample(info_, 60, 3), ref::random_sample(info_, 41, 4)}};
};

TEST_F(BudgetSplits, LieBetweenTheBoundAndTheUniformSplit) {
  const auto rows = run("budget_split", {});
  int closer = 0;
  for (int s = 0; s < 2; ++s) {
    for (int i = 0; i <= 10; ++i) {
      const auto loss = [&](const std::string& name) { return value(rows, "split_loss_" + name, i / 10.0, s); };
      const double slack = 1e-12;
      EXPECT_LE(loss("bound"), loss("exact"));
      EXPECT_LE(loss("exact"), loss("greedy"));
      EXPECT_LE(loss("exact"), loss("oracle_order") + slack);
      EXPECT_LE(loss("exact"), loss("uniform") + slack);
      closer += loss("greedy") < loss("uniform") - 0.01 ? 1 : 0;
    }
  }
  EXPECT_GT(closer, 10);
}

TEST_F(BudgetSplits, UniformIsTheLossCurve) {
  for (const std::string normalise : {"layer", "none"}) {
    const auto splits = run("budget_split", {{"normalise", normalise, ""}, {"solver", "hull", ""}});
    const auto curve = run("eviction_curve", {{"normalise", normalise, ""}, {"loss", "yes", ""}});
    for (int s = 0; s < 2; ++s) {
      for (int i = 0; i <= 10; ++i) {
        const double loss = value(curve, "eviction_loss_curve", i / 10.0, s);
        EXPECT_NEAR(value(splits, "split_loss_uniform", i / 10.0, s), loss, kRounded);
      }
    }
  }
}

TEST_F(BudgetSplits, LocalRatiosAddUpToTheBudget) {
  const auto rows = run("budget_split", {{"detail", "head", ""}});
  for (const std::string name : {"local_ratio", "local_ratio_exact"}) {
    for (int i = 0; i <= 10; ++i) {
      double kept = 0;
      for (int layer = 0; layer < 2; ++layer) {
        for (int head = 0; head < 2; ++head) kept += 48 * (1 - find(rows, name, i / 10.0, 0, layer, head)->value);
      }
      const int expected = 48 * (10 - i) / 10;
      EXPECT_NEAR(kept, 4 * expected, 1e-9) << name;
    }
  }
}

// solve_exact takes at most 4096 entries a head.
TEST(BudgetSplitLimits, RefusedExactSplitIsARowWithTheReason) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = ref::tiny_info(1, 1, 1, 2);
  const int32_t length = 4128, context = 4097, keep = 16;
  WithOutput source(*backend, info, {ref::random_sample(info, length, 3)});
  ReplayedCase replayed{
      source, *backend, {tiny_sample(length)}, one_shot_schedule({&length, 1}, {&context, 1}, {&keep, 1})};
  replayed.decode_time = false;
  replayed.block = 16;
  replayed.scorer =
      std::make_unique<ByPosition>([](int, int, int32_t position) { return static_cast<float>(position); });
  const auto rows = measure(replayed, "budget_split", {{"points", "2", ""}, {"detail", "head", ""}});
  const char* const reason = "budget: head 0 has 4097 entries: expected at most 4096 for an exact split";
  ASSERT_TRUE(find(rows, "split_loss_exact", 0.5) && find(rows, "split_gap_exact", 0.5));
  EXPECT_EQ(find(rows, "split_loss_exact", 0.5)->skipped, reason);
  EXPECT_EQ(find(rows, "split_gap_exact", 0.5)->skipped, reason);
  EXPECT_GT(value(rows, "split_loss_greedy", 0.5), 0);
  EXPECT_FALSE(find(rows, "local_ratio_exact", 0.5, 0, 0, 0));
}

}  // namespace
}  // namespace kv::test
