#include "harness/spec/default_report.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "harness/files.h"
#include "harness/spec/spec_reader.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

Spec parse(const std::string& yaml) { return parse_spec(yaml, "s.yaml"); }

const std::string kDecode =
    "# Which?\nmodel: m\ndata: [{task: reason, tokens: 8}, {task: kv, tokens: 8}]\n"
    "policies: [full, golden, {policy: h2o, label: \"h2o \\\"2\\\"\"}]\n"
    "axes: {budget: [64, 128], interval: 8}\nmetrics: [loss, recall]\n";

TEST(DefaultReport, HasATableAndACurveForEachHeadline) {
  const ReportPlan plan = parse(kDecode).report;
  ASSERT_EQ(plan.tables.size(), 3u);
  EXPECT_EQ(plan.tables[0].name, "answer-loss-ratio");
  EXPECT_EQ(plan.tables[0].measure.ratio, (std::vector<std::string>{"answer_nll_sum", "answer_nll_sum_full"}));
  EXPECT_EQ(plan.tables[1].name, "loss-ratio");
  EXPECT_EQ(plan.tables[1].measure.ratio, (std::vector<std::string>{"nll_sum", "nll_sum_full"}));
  EXPECT_EQ(plan.tables[1].rows, std::vector<std::string>{"policy"});
  EXPECT_EQ(plan.tables[1].columns, (std::vector<std::string>{"data", "budget"}));
  EXPECT_EQ(plan.tables[1].interval, IntervalStyle::kRange);
  EXPECT_EQ(plan.tables[1].better, Better::kLower);
  EXPECT_EQ(plan.tables[1].unranked, (std::vector<std::string>{"full", "golden"}));
  EXPECT_EQ(plan.tables[2].name, "recall");
  EXPECT_EQ(plan.tables[2].better, Better::kHigher);
  ASSERT_EQ(plan.plots.size(), 3u);
  EXPECT_EQ(plan.plots[0].kind, PlotKind::kCurve);
  EXPECT_EQ(plan.plots[0].x, "budget");
  EXPECT_EQ(plan.plots[0].facet, std::vector<std::string>{"data"});
  EXPECT_EQ(plan.plots[0].x_scale, Scale::kLinear);
}

TEST(DefaultReport, WithoutANumericAxisThereAreBars) {
  const ReportPlan plan = parse(
                              "model: m\ndata: [{task: kv, tokens: 8}]\npolicies: [full, keydiff]\nprotocol: one-shot\n"
                              "axes: {keep: 0.5, allocation: [uniform, ada]}\nmetrics: [loss]\n")
                              .report;
  ASSERT_EQ(plan.plots.size(), 2u);  // of the answers, and of the whole text
  EXPECT_EQ(plan.plots[0].kind, PlotKind::kBars);
  EXPECT_EQ(plan.plots[0].x, "data");
  EXPECT_EQ(plan.plots[0].series, (std::vector<std::string>{"policy", "allocation"}));
  EXPECT_EQ(plan.tables[0].rows, (std::vector<std::string>{"policy", "allocation"}));
  EXPECT_EQ(plan.tables[0].columns, std::vector<std::string>{"data"});
}

TEST(DefaultReport, CountsTheAnswersOfDataThatHasSome) {
  const std::string rest = "policies: [full, h2o]\naxes: {budget: 64, interval: 8}\nmetrics: [loss]\n";
  const ReportPlan prose = parse("model: m\ndata: [{task: book, tokens: 8}, {text: t, tokens: 8}]\n" + rest).report;
  ASSERT_EQ(prose.tables.size(), 1u);
  EXPECT_EQ(prose.tables[0].name, "loss-ratio");
  const ReportPlan both =
      parse("model: m\ndata: [{task: book, tokens: 8}, {name: r, task: reason, tokens: 8}]\n" + rest).report;
  ASSERT_EQ(both.tables.size(), 2u);
  ASSERT_EQ(both.plots.size(), 2u);
  const Where only_answers{{"data", {{"r"}}}};
  EXPECT_EQ(both.tables[0].where, only_answers);
  EXPECT_EQ(both.plots[0].where, only_answers);
  EXPECT_TRUE(both.tables[1].where.empty());  // of the whole text, whatever it is
}

TEST(DefaultReport, ProtocolsHaveHeadlinesOfTheirOwn) {
  const ReportPlan answers =
      parse(
          "model: m\ndata: [{task: kv, tokens: 64}]\npolicies: [full, keydiff]\nprotocol: answer\n"
          "axes: {keep: [0.5, 0.2]}\n")
          .report;
  ASSERT_EQ(answers.tables.size(), 1u);
  EXPECT_EQ(answers.tables[0].measure.metrics, std::vector<std::string>{"accuracy"});
  EXPECT_EQ(answers.plots[0].x, "keep");
  const ReportPlan timings =
      parse("model: m\nprotocol: latency\npolicies: [full]\naxes: {context: [1024, 8192]}\n").report;
  ASSERT_EQ(timings.tables.size(), 3u);  // no throughput, which is of the axis new_tokens
  EXPECT_EQ(timings.tables[0].name, "prefill-time");
  EXPECT_EQ(timings.plots[0].x_scale, Scale::kLog2);
}

// Cases are told apart by rows of the table, by series and by facets of the plot; steps are its columns.
TEST(DefaultReport, OfATrainingIsTheCurvesOfWhatItsLearnersMeasure) {
  const std::string begin =
      "model: m\ndata: [{task: kv, tokens: 512}, {task: reason, tokens: 512}]\npolicies: [foresight-kv]\nprotocol: "
      "train\n";
  const ReportPlan supervised = parse(begin + "learn: {steps: 20}\naxes: {rate: [1e-2, 1e-3]}\n").report;
  ASSERT_EQ(supervised.tables.size(), 2u);
  EXPECT_EQ(supervised.tables[1].measure.metrics, std::vector<std::string>{"evicted_overlap"});
  EXPECT_EQ(supervised.tables[1].better, Better::kHigher);
  EXPECT_EQ(supervised.tables[1].rows, (std::vector<std::string>{"policy", "rate"}));
  EXPECT_EQ(supervised.tables[1].columns, std::vector<std::string>{"x"});
  EXPECT_EQ(supervised.tables[1].where, (Where{{"x", {{"0", "19"}}}}));
  ASSERT_EQ(supervised.plots.size(), 2u);
  EXPECT_EQ(supervised.plots[0].kind, PlotKind::kCurve);
  EXPECT_EQ(supervised.plots[0].x, "x");
  EXPECT_EQ(supervised.plots[0].series, (std::vector<std::string>{"policy", "rate"}));
  EXPECT_TRUE(supervised.plots[0].facet.empty());
  const ReportPlan reinforced = parse(begin +
                                      "learn: {stage: reinforced, start: foresight-kv}\n"
                                      "axes: {reward: [ours, all], training_seed: [1, 2], steps: [10, 20]}\n")
                                    .report;
  ASSERT_EQ(reinforced.tables.size(), 4u);
  EXPECT_EQ(reinforced.tables[0].measure.metrics, std::vector<std::string>{"reward"});
  EXPECT_EQ(reinforced.tables[0].where, (Where{{"x", {{"0", "9", "19"}}}}));
  EXPECT_EQ(reinforced.plots[0].series, (std::vector<std::string>{"policy", "reward"}));
  EXPECT_EQ(reinforced.plots[0].facet, (std::vector<std::string>{"training_seed", "steps"}));
}

TEST(DefaultReport, IsForASpecThatNamesNeitherTablesNorPlots) {
  for (const char* key : {"tables: []\n", "plots: []\n", "tables:\n"}) {
    const Spec spec = parse(kDecode + key);
    EXPECT_TRUE(spec.report.tables.empty() && spec.report.plots.empty()) << key;
    EXPECT_EQ(spec.resolved, kDecode + key);
  }
  EXPECT_TRUE(
      parse("model: m\ndata: [{task: kv, tokens: 8}]\npolicies: [full]\nmetrics: [survival]\n").report.tables.empty());
}

TEST(DefaultReport, StandsInTheResolvedSpecWhichReadsTheSame) {
  for (const std::string& text :
       {kDecode, kDecode.substr(0, kDecode.size() - 1), kDecode + "...\n",
        std::string(
            "{model: m, data: [{task: kv, tokens: 8}], policies: [h2o], metrics: [loss], axes: {budget: 8}}")}) {
    const Spec spec = parse(text);
    ASSERT_FALSE(spec.report.tables.empty()) << text;
    EXPECT_NE(spec.resolved.find("\n# The spec names neither tables nor plots; these are kvlab's own.\ntables:\n"),
              std::string::npos);
    const Spec again = parse(spec.resolved);
    EXPECT_EQ(again.resolved, spec.resolved);
    EXPECT_EQ(again.report.tables.size(), spec.report.tables.size());
    EXPECT_EQ(again.report.plots.size(), spec.report.plots.size());
    EXPECT_EQ(again.policies.size(), spec.policies.size());
  }
}

TEST(DefaultReport, LeavesShippedExperimentsAndResultsAsTheyAre) {
  int specs = 0;
  for (const auto& entry : fs::directory_iterator(ref::source_path("experiments"))) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string text = read_file(entry.path()), resolved = load_spec(entry.path()).resolved;
    if (text.find("\nlike: ") == text.npos) {
      EXPECT_EQ(resolved, text) << entry.path();
    } else {  // it is put together, but with the other spec's report or its own
      EXPECT_EQ(resolved.find("these are kvlab's own"), resolved.npos) << entry.path();
    }
    ++specs;
  }
  for (const auto& entry : fs::directory_iterator(ref::source_path("results"))) {
    const fs::path file = entry.path() / "spec.yaml";
    if (!fs::exists(file)) continue;
    EXPECT_EQ(load_spec(file).resolved, read_file(file)) << file;
    ++specs;
  }
  EXPECT_GE(specs, 40);
}

}  // namespace
}  // namespace kv
