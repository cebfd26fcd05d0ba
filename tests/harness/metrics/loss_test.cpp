#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/source/model_source.h"
#include "tests/support/paths.h"
#include "tests/support/replayed.h"

// Metrics that read losses only: loss, entropy_split, top_increases.

namespace kv::test {
namespace {

// Six tokens, five predictions. Full-cache losses and entropies by hand; the policy's come in two blocks.
class LossMetricsByHand : public ::testing::Test {
 protected:
  LossMetricsByHand() {
    sample_.ids = {10, 11, 12, 13, 14, 15};
    sample_.labels = {Label::kContext,  Label::kContext, Label::kContext,
                      Label::kQuestion, Label::kAnswer,  Label::kAnswer};
    baseline_.sequences = 1;
    baseline_.lengths = {6};
    baseline_.nll = {{1, 2, 1, 0.5, 0.5, 0}};
    baseline_.entropy = {{3, 1, 2, 1, 1, 9}};
    baseline_.argmax = {{11, 12, 13, 14, 15, 0}};
  }

  std::vector<Measured> run(const std::string& name, std::vector<GivenParam> options = {}) {
    const auto metric = make_metric(name, std::move(options));
    const Sample* samples[] = {&sample_};
    metric->begin_case({.batch = {},
                        .samples = samples,
                        .baseline = &baseline_,
                        .first_event = {&first_event_, 1},
                        .decode = decode_});
    feed(*metric, 0, {{1, 2, 1}, {}, {11, 12, 13}});
    feed(*metric, 3, {{1.5, 1, 0}, {}, {14, 99, 0}});
    std::vector<Measured> rows;
    metric->report({}, rows);
    return rows;
  }

  static void feed(Metric& metric, int32_t first, const TokenLosses& losses) {
    Block block;
    block.segments = {{.sequence = 0, .first_token = 0, .count = 3, .first_position = first}};
    block.tokens = 3;
    metric.block_done(block, losses);
  }

  Sample sample_;
  Baseline baseline_;
  int32_t first_event_ = 3;
  std::function<std::string(std::span<const int32_t>)> decode_;
};

TEST_F(LossMetricsByHand, SumsAreOverPredictedTokensAndTheTailBeginsAtTheFirstEvent) {
  const auto rows = run("loss");
  EXPECT_EQ(value(rows, "nll_sum"), 6.5);
  EXPECT_EQ(value(rows, "nll_sum_full"), 5);
  EXPECT_EQ(value(rows, "predicted_tokens"), 5);
  EXPECT_EQ(value(rows, "loss_ratio"), 1.3);
  EXPECT_EQ(value(rows, "loss_increase"), 0.3);
  EXPECT_EQ(value(rows, "nll_sum_tail"), 2.5);
  EXPECT_EQ(value(rows, "nll_sum_tail_full"), 1);
  EXPECT_EQ(value(rows, "loss_ratio_tail"), 2.5);
}

TEST_F(LossMetricsByHand, BinsAverageTheIncreaseOverTheTargetsTheyHold) {
  const auto rows = run("loss", {{.key = "bin", .text = "2"}});
  // Bin 0 holds target 1 alone (nothing predicts token 0), bin 2 targets 2 and 3, bin 4 targets 4 and 5.
  std::map<double, double> increase;
  for (const Measured& row : rows)
    if (row.metric == "loss_increase_at") increase[row.x.value()] = row.value;
  EXPECT_EQ(increase, (std::map<double, double>{{0, 0}, {2, 0}, {4, 0.75}}));
}

TEST_F(LossMetricsByHand, AnswersAreCountedByTheLabelOfTheTarget) {
  const auto rows = run("loss");
  // Targets 14 and 15: positions 3 and 4 predict them, the policy gets the second wrong.
  EXPECT_EQ(value(rows, "answer_tokens"), 2);
  EXPECT_EQ(value(rows, "answer_nll"), 1.25);
  EXPECT_EQ(value(rows, "answer_nll_full"), 0.5);
  EXPECT_EQ(value(rows, "answer_accuracy"), 0.5);
  EXPECT_EQ(value(rows, "answer_accuracy_full"), 1);
}

TEST_F(LossMetricsByHand, AnswerAndPromptAreSummedApart) {
  const auto rows = run("loss");
  // Policy 1, 2, 1 | 1.5, 1 and full cache 1, 2, 1 | 0.5, 0.5; the question is part of the prompt.
  EXPECT_EQ(value(rows, "answer_nll_sum"), 2.5);
  EXPECT_EQ(value(rows, "answer_nll_sum_full"), 1);
  EXPECT_EQ(value(rows, "answer_loss_ratio"), 2.5);
  EXPECT_EQ(value(rows, "prompt_tokens"), 3);
  EXPECT_EQ(value(rows, "prompt_nll_sum"), 4);
  EXPECT_EQ(value(rows, "prompt_nll_sum_full"), 4);
  EXPECT_EQ(value(rows, "prompt_loss_ratio"), 1);
  sample_.labels.assign(6, Label::kContext);
  for (const Measured& row : run("loss")) {
    EXPECT_FALSE(row.metric.starts_with("answer_") || row.metric.starts_with("prompt_")) << row.metric;
  }
}

TEST_F(LossMetricsByHand, WithoutAnEventThereIsNoTail) {
  first_event_ = -1;
  const auto rows = run("loss");
  EXPECT_EQ(skipped(rows, "loss_ratio_tail"), "no event happens in this sample");
  EXPECT_EQ(value(rows, "loss_ratio"), 1.3);
}

TEST_F(LossMetricsByHand, SplitByEntropyBreaksTiesToTheNewer) {
  // 40 % of five positions are two: entropies 3, 1, 2, 1, 1 → positions 0 and 2. With 80 %: four, so of the three ones
  // the oldest (position 1) stays low.
  const auto rows = run("entropy_split", {{"fraction", "0.4", ""}});
  EXPECT_EQ(value(rows, "nll_high"), 2);
  EXPECT_EQ(value(rows, "nll_high_full"), 2);
  EXPECT_EQ(value(rows, "loss_increase_high"), 0);
  EXPECT_EQ(value(rows, "nll_low"), 4.5);
  EXPECT_EQ(value(rows, "nll_low_full"), 3);
  EXPECT_EQ(value(rows, "loss_increase_low"), 0.5);
  const auto most = run("entropy_split", {{"fraction", "0.8", ""}});
  EXPECT_EQ(value(most, "nll_low"), 2);
  EXPECT_EQ(value(most, "loss_increase_high"), 0.5);
}

TEST_F(LossMetricsByHand, SplitOfTheTailRanksTheTailOnly) {
  // Positions 3 and 4 with equal entropy: half of them is one, the newer.
  const auto rows = run("entropy_split", {{"fraction", "0.5", ""}, {"range", "tail", ""}});
  EXPECT_EQ(value(rows, "nll_high"), 1);
  EXPECT_EQ(value(rows, "nll_low"), 1.5);
  EXPECT_EQ(value(rows, "loss_increase_low"), 2);
  first_event_ = -1;
  EXPECT_NE(skipped(run("entropy_split", {{"range", "tail", ""}}), "loss_increase_low"), "");
}

TEST_F(LossMetricsByHand, TopIncreasesNamesTheTokensWhosePredictionChanged) {
  // Position 3 lost more (1.0) but still predicts 14; position 4 lost 0.5 and now predicts 99.
  const auto rows = run("top_increases", {{"fraction", "0.4", ""}, {"context", "2", ""}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].metric, "top_increase");
  EXPECT_EQ(rows[0].x, 5);
  EXPECT_EQ(rows[0].value, 0.5);
  EXPECT_EQ(rows[0].text, R"({"context":[13,14],"expected":[15],"predicted":[99]})");
  decode_ = [](std::span<const int32_t> ids) {
    std::string text;
    for (const int32_t id : ids) text += static_cast<char>('a' + id % 26);
    return text;
  };
  EXPECT_EQ(run("top_increases", {{"fraction", "0.4", ""}, {"context", "2", ""}})[0].text,
            R"({"context":"no","expected":"p","predicted":"v"})");
}

TEST_F(LossMetricsByHand, TopIncreasesLeavesOutHighEntropyTokens) {
  // With 60 % of the positions high, 4 (the newest of the equal ones) is among them.
  const auto rows = run("top_increases", {{"fraction", "0.6", ""}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].skipped, "no low-entropy prediction changed for the worse");
}

TEST_F(LossMetricsByHand, TopIncreasesKeepsTheLargestOldestFirst) {
  sample_.ids.resize(6);
  baseline_.argmax = {{0, 0, 0, 0, 0, 0}};
  baseline_.nll = {{0.5, 2, 0.5, 1, 0.5, 0}};
  // Increases 0.5, 0, 0.5, 0.5, 0.5; high: position 0 (fraction 0.2).
  const auto rows = run("top_increases", {{"count", "2", ""}});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].x, 3);
  EXPECT_EQ(rows[1].x, 4);
}

TEST(LossMetrics, RefuseOptionsOutOfRange) {
  EXPECT_THROW(make_metric("entropy_split", {{"fraction", "1.5", ""}}), UserError);
  EXPECT_THROW(make_metric("entropy_split", {{"range", "whole", ""}}), UserError);
  EXPECT_THROW(make_metric("top_increases", {{"count", "0", ""}}), UserError);
}

TEST(LossMetrics, SayThatATraceHasNoLosses) {
  const auto backend = make_backend("cpu");
  ref::TinySource source(*backend, ref::tiny_info(1, 1, 1, 2), {ref::weighted_sample({{1, 2, 3, 4}})});
  for (const auto& [name, metric] :
       {std::pair{"loss", "loss_ratio"}, {"entropy_split", "loss_increase_low"}, {"top_increases", "top_increase"}}) {
    const int32_t length = 4;
    ReplayedCase replayed{source, *backend, {tiny_sample(4)}, full_schedule({&length, 1}, 4)};
    EXPECT_EQ(skipped(measure(replayed, name), metric), "the source has no losses: a trace is not fed back") << name;
  }
}

// Same steps, same bits: the ratio of `full` is one exactly.
TEST(LossMetrics, FullHasRatioOneOnAModel) {
  const auto backend = make_backend("cpu");
  ModelSource source(*backend, load_model(ref::source_path("tests/data/llama")));
  const auto file = SafetensorsFile::open(ref::source_path("tests/data/llama/expected.safetensors"));
  Sample sample;
  sample.ids = file.read_i32(file.require("input_ids"));
  sample.ids.resize(96);
  const int32_t length = 96;
  ReplayedCase full{source, *backend, {sample}, full_schedule({&length, 1}, 1024)};
  const auto rows = measure(full, "loss");
  EXPECT_EQ(value(rows, "loss_ratio"), 1);
  EXPECT_EQ(value(rows, "loss_increase"), 0);
  EXPECT_GT(value(rows, "nll_sum"), 1);

  ReplayedCase cut{source, *backend, {sample}, decode_schedule({&length, 1}, 16, 16)};
  cut.scorer = std::make_unique<ByPosition>([](int, int, int32_t position) { return static_cast<float>(-position); });
  const auto changed = measure(cut, "loss");
  EXPECT_GT(std::abs(value(changed, "loss_ratio_tail") - 1), 1e-4);
}

}  // namespace
}  // namespace kv::test
