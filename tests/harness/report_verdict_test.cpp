// Verdicts computed from rows, and how a page shows them.
#include <gtest/gtest.h>

#include "harness/report/report.h"
#include "harness/report/verdict.h"
#include "harness/rows_file.h"
#include "harness/spec/report_plan.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

constexpr int kSamples = 8;

// By sample s: h2o 2 + s, golden half of that, snapkv one more; at budget 16 every number is a tenth larger. r-kv has
// none: it was skipped. noisy is now above h2o, now below it.
RowTable losses() {
  RowTable table{.axes = {"budget"}};
  const auto add = [&](const std::string& policy, int sample, double value, const std::string& budget) {
    for (const char* metric : {"loss", "twice"}) {
      table.rows.push_back({.experiment = "e",
                            .model = "m",
                            .data = "prose",
                            .policy = policy,
                            .device = "cpu",
                            .sample = sample,
                            .seed = 1,
                            .metric = metric,
                            .value = metric == std::string("twice") ? 2 * value : value,
                            .axes = {budget}});
    }
  };
  for (const auto& [budget, factor] : {std::pair("8", 1.0), std::pair("16", 1.1)}) {
    for (int s = 0; s < kSamples; ++s) {
      const double h2o = factor * (2 + s);
      add("golden", s, h2o / 2, budget);
      add("h2o", s, h2o, budget);
      add("snapkv", s, h2o + 1, budget);
      add("noisy", s, s % 2 ? h2o + 3 : h2o - 2.9, budget);
    }
    Row skipped{.experiment = "e",
                .model = "m",
                .data = "prose",
                .policy = "r-kv",
                .device = "cpu",
                .metric = "loss",
                .skipped = "too short",
                .axes = {budget}};
    table.rows.push_back(skipped);
  }
  return table;
}

ReportPlan plan(const std::string& keys, const std::string& fixed = "fixed: afterwards, since: 2026-11-23") {
  const std::string yaml =
      "tables:\n"
      "  - {name: loss, metric: loss, rows: [policy], columns: [budget], paper: printed}\n"
      "  - {name: both, metric: [loss, twice], rows: [policy], columns: [metric], where: {budget: 8}}\n"
      "paper: {printed: {table: Table 2, values: [{policy: h2o, budget: [8, 16], value: [5, 11]}]}}\n"
      "verdict: [{item: 001 Table 2, criterion: It holds., " +
      fixed + ", " + keys + "}]\n";
  const YamlDocument document(yaml, "x.yaml", {});
  MapReader spec(document, document.root(), "");
  const std::vector<std::string> axes = {"budget"};
  return read_report(spec, {.axes = axes});
}

VerdictResult result_of(const std::string& keys) {
  const ReportPlan report = plan(keys);
  return judge(report.verdicts[0], report, losses());
}

const char* outcome_of(const std::string& keys) { return name_of(result_of(keys).outcome); }

const std::string kHolds = "{table: loss, cell: {policy: golden}, over: {policy: h2o}, below: 1}";
const std::string kFails = "{table: loss, cell: {policy: snapkv}, over: {policy: h2o}, below: 1}";

TEST(Verdict, FollowsFromWhichChecksHold) {
  EXPECT_STREQ(outcome_of("reproduced_if: [" + kHolds + "], partly_if: [" + kFails + "]"), "reproduced");
  EXPECT_STREQ(outcome_of("reproduced_if: [" + kHolds + ", " + kFails + "], partly_if: [" + kHolds + "]"), "partly");
  EXPECT_STREQ(outcome_of("reproduced_if: [" + kFails + "], partly_if: [" + kFails + "]"), "differs");
  EXPECT_STREQ(outcome_of("reproduced_if: [" + kFails + "]"), "differs");
  EXPECT_STREQ(outcome_of("partly_if: [" + kHolds + "]"), "partly") << "it cannot be reproduced";
  EXPECT_STREQ(outcome_of("testable_if: [" + kFails + "], reproduced_if: [" + kHolds + "]"), "untestable");
  EXPECT_STREQ(outcome_of("testable_if: [" + kHolds + "], reproduced_if: [" + kHolds + "]"), "reproduced");
  EXPECT_STREQ(outcome_of("judged: differs, numbers: [{table: loss}]"), "differs");
}

TEST(Verdict, IsUntestableWithoutNumbers) {
  EXPECT_STREQ(outcome_of("reproduced_if: [{table: loss, cell: {policy: r-kv}, below: 1}]"), "untestable") << "skipped";
  EXPECT_STREQ(outcome_of("reproduced_if: [{table: loss, cell: {policy: tova}, below: 1}]"), "untestable") << "no such";
  EXPECT_STREQ(
      outcome_of("reproduced_if: [" + kHolds + "], partly_if: [{table: loss, cell: {policy: r-kv}, below: 1}]"),
      "untestable");
}

// Of few samples no interval is printed, so what asks it cannot hold: that is no difference.
TEST(Verdict, IsUntestableWhereSamplesAreTooFewForTheIntervalItAsks) {
  RowTable few = losses();
  std::erase_if(few.rows, [](const Row& row) { return row.sample.value_or(0) > 3; });
  const std::string check = "{table: loss, cell: {policy: snapkv}, over: {policy: h2o}, below: 1";
  const auto outcome = [&](const std::string& keys, const RowTable& rows) {
    const ReportPlan report = plan(keys);
    return std::string(name_of(judge(report.verdicts[0], report, rows).outcome));
  };
  EXPECT_EQ(outcome("reproduced_if: [" + check + ", by: interval}]", few), "untestable");
  EXPECT_EQ(outcome("reproduced_if: [" + check + ", by: interval}]", losses()), "differs");
  EXPECT_EQ(outcome("reproduced_if: [" + check + "}]", few), "differs");
  // One budget with all samples and one with few: what fails with its interval decides, what holds waits for the other.
  RowTable half = losses();
  std::erase_if(half.rows, [](const Row& row) { return row.axes[0] == "16" && row.sample.value_or(0) > 3; });
  const std::string holding = "{table: loss, cell: {policy: golden}, over: {policy: h2o}, below: 1, by: interval";
  EXPECT_EQ(outcome("reproduced_if: [" + check + ", by: interval}]", half), "differs");
  EXPECT_EQ(outcome("reproduced_if: [" + holding + "}]", half), "untestable");
  EXPECT_EQ(outcome("reproduced_if: [" + holding + ", in: some}]", half), "reproduced");
}

// A cell that lacks its number does not hold, whatever the others do.
TEST(Verdict, EveryCellThatIsLeftCounts) {
  const VerdictResult all = result_of("reproduced_if: [{table: loss, above: 0}]");
  ASSERT_EQ(all.reproduced[0].cells.size(), 10u);  // five policies at two budgets
  EXPECT_EQ(all.outcome, Outcome::kDiffers) << "r-kv has no number";
  EXPECT_STREQ(outcome_of("reproduced_if: [{table: loss, cell: {policy: [h2o, golden]}, above: 0}]"), "reproduced");
  EXPECT_STREQ(outcome_of("reproduced_if: [{table: loss, cell: {policy: h2o}, above: 5.6}]"), "differs");
  EXPECT_STREQ(outcome_of("reproduced_if: [{table: loss, cell: {policy: h2o}, above: 5.6, in: some}]"), "reproduced");
  EXPECT_STREQ(outcome_of("reproduced_if: [{table: loss, cell: {policy: h2o, budget: 8.0}, within: [5.5, 5.5]}]"),
               "reproduced");
}

TEST(Verdict, NumbersAreThoseOfTheTablesPairedBySample) {
  const VerdictResult less =
      result_of("reproduced_if: [{table: loss, cell: {policy: snapkv, budget: 8}, less: {policy: h2o}, above: 0}]");
  const CheckedCell& one_more = less.reproduced[0].cells.at(0);
  EXPECT_DOUBLE_EQ(*one_more.value, 1);  // the same in every sample, so the paired interval has no width
  EXPECT_NEAR(one_more.interval->high - one_more.interval->low, 0, 1e-12);
  const VerdictResult over = result_of("reproduced_if: [" + kHolds + "]");
  ASSERT_EQ(over.reproduced[0].cells.size(), 2u);
  EXPECT_DOUBLE_EQ(*over.reproduced[0].cells[0].value, 0.5);
  EXPECT_EQ(over.reproduced[0].cells[0].label, "budget=8");
  EXPECT_EQ(over.reproduced[0].subject, "golden / h2o (loss)");
  const VerdictResult along =
      result_of("reproduced_if: [{table: loss, cell: {policy: h2o, budget: 16}, over: {budget: 8}, above: 1}]");
  EXPECT_NEAR(*along.reproduced[0].cells.at(0).value, 1.1, 1e-12);
}

// Rewards are losses with another sign; half of a loss is half of it under either.
TEST(Verdict, DividesNegativeNumbersAsPositiveOnes) {
  RowTable rows = losses();
  for (Row& row : rows.rows) {
    if (row.value) row.value = -*row.value;
  }
  const ReportPlan report = plan("reproduced_if: [" + kHolds + "]");
  EXPECT_DOUBLE_EQ(*judge(report.verdicts[0], report, rows).reproduced[0].cells.at(0).value, 0.5);
  const ReportPlan of_snapkv =
      plan("reproduced_if: [{table: loss, cell: {policy: snapkv}, over: {policy: h2o}, above: 1}]");
  const CheckedCell negative = judge(of_snapkv.verdicts[0], of_snapkv, rows).reproduced[0].cells.at(0);
  const CheckedCell positive = judge(of_snapkv.verdicts[0], of_snapkv, losses()).reproduced[0].cells.at(0);
  EXPECT_NEAR(*negative.value, *positive.value, 1e-12);
  EXPECT_NEAR(negative.interval->low, positive.interval->low, 1e-12);
  EXPECT_NEAR(negative.interval->high, positive.interval->high, 1e-12);
}

TEST(Verdict, ByIntervalTheWholeIntervalKeepsTheBound) {
  const std::string noisy = "{table: loss, cell: {policy: noisy, budget: 8}, less: {policy: h2o}, above: 0";
  EXPECT_STREQ(outcome_of("reproduced_if: [" + noisy + "}]"), "reproduced");
  EXPECT_STREQ(outcome_of("reproduced_if: [" + noisy + ", by: interval}]"), "differs");
  EXPECT_STREQ(
      outcome_of("reproduced_if: [{table: loss, cell: {policy: snapkv}, less: {policy: h2o}, above: 0, by: interval}]"),
      "reproduced");
}

TEST(Verdict, ComparesMetricsAndThePaper) {
  const VerdictResult metrics = result_of(
      "reproduced_if: [{table: both, cell: {policy: h2o, metric: twice}, over: {metric: loss}, within: [2, 2]}]");
  EXPECT_EQ(metrics.outcome, Outcome::kReproduced);
  EXPECT_FALSE(metrics.reproduced[0].cells.at(0).interval.has_value()) << "not paired";
  const VerdictResult paper = result_of("reproduced_if: [{table: loss, over: paper, within: [0.5, 1.2]}]");
  ASSERT_EQ(paper.reproduced[0].cells.size(), 2u) << "only h2o has printed numbers";
  EXPECT_DOUBLE_EQ(*paper.reproduced[0].cells[0].value, 5.5 / 5);
  EXPECT_NEAR(*paper.reproduced[0].cells[1].value, 6.05 / 11, 1e-12);
  EXPECT_EQ(paper.outcome, Outcome::kReproduced);
}

// A quotient of nothing is no number, and the lower end of an interval stays the lower one.
TEST(Verdict, APrintedZeroHasNoQuotientAndANegativeNumberTurnsNoInterval) {
  const auto against = [](const char* printed, const char* check) {
    const std::string yaml =
        std::string("tables: [{name: loss, metric: loss, rows: [policy], where: {budget: {not: 16}}, paper: p}]\n") +
        "paper: {p: {table: T, values: [{policy: h2o, budget: 16, value: 9}, {policy: h2o, budget: 8, value: " +
        printed + "}]}}\nverdict: [{item: a, criterion: c, fixed: afterwards, since: 2026-11-23, reproduced_if: [" +
        check + "]}]\n";
    const YamlDocument document(yaml, "x.yaml", {});
    MapReader spec(document, document.root(), "");
    const std::vector<std::string> axes = {"budget"};
    const ReportPlan report = read_report(spec, {.axes = axes});
    return judge(report.verdicts[0], report, losses());
  };
  const VerdictResult zero = against("0", "{table: loss, over: paper, above: 1}");
  EXPECT_FALSE(zero.reproduced[0].cells.at(0).value.has_value());
  EXPECT_EQ(zero.outcome, Outcome::kUntestable);
  const VerdictResult negative = against("-1", "{table: loss, over: paper, below: 0, by: interval}");
  const CheckedCell& cell = negative.reproduced[0].cells.at(0);
  EXPECT_DOUBLE_EQ(*cell.value, -5.5) << "by the number of budget 8, not that of 16, which is left out";
  EXPECT_LT(cell.interval->low, -5.5);
  EXPECT_GT(cell.interval->high, -5.5);
}

// A text of its own has no sample in common with another: their numbers are compared, and no interval says how sure.
TEST(Verdict, ComparesWhatSharesNoSampleByItsNumbers) {
  RowTable rows = losses();
  for (Row& row : rows.rows) {
    if (row.policy == "golden") row.data = "code";
  }
  const ReportPlan report = plan("reproduced_if: [" + kHolds + "]");
  const VerdictResult result = judge(report.verdicts[0], report, rows);
  EXPECT_DOUBLE_EQ(*result.reproduced[0].cells.at(0).value, 0.5);
  EXPECT_TRUE(result.reproduced[0].cells[0].unpaired);
  EXPECT_EQ(result.outcome, Outcome::kReproduced);
  EXPECT_NE(to_markdown(verdict_view(report.verdicts[0], result, 1)).find("0.500 (not paired) |"), std::string::npos);
  const ReportPlan sure =
      plan("reproduced_if: [{table: loss, cell: {policy: golden}, over: {policy: h2o}, below: 1, by: interval}]");
  EXPECT_EQ(judge(sure.verdicts[0], sure, rows).outcome, Outcome::kUntestable);
}

TEST(Verdict, SaysWhatWasAskedAndWhatHeld) {
  const ReportPlan report = plan("reproduced_if: [" + kFails + "], partly_if: [" + kHolds + "], note: So it is.",
                                 "fixed: beforehand, since: 2026-11-21, commit: 2e16115");
  const std::string text =
      to_markdown(verdict_view(report.verdicts[0], judge(report.verdicts[0], report, losses()), 1));
  EXPECT_TRUE(text.starts_with("### 001 Table 2: partly\n\n| decides | number | of | is | must be | holds |\n"))
      << text;
  EXPECT_NE(text.find("| reproduced | snapkv / h2o (loss) | budget=8 | 1.182 "), std::string::npos) << text;
  EXPECT_NE(text.find("| partly | golden / h2o (loss) | budget=8 | 0.500 | &lt; 1 | yes |\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("| &lt; 1 | no |\n"), std::string::npos) << text;
  EXPECT_NE(text.find("Criterion: It holds.  \nFixed beforehand, 2026-11-21, commit 2e16115.  \nSo it is.  \n"),
            std::string::npos)
      << text;
}

TEST(Verdict, AJudgementIsPrintedWithItsNumbers) {
  const ReportPlan report = plan("judged: partly, numbers: [{table: loss, cell: {policy: golden}}, {table: both}]");
  const std::string text =
      to_markdown(verdict_view(report.verdicts[0], judge(report.verdicts[0], report, losses()), 1));
  EXPECT_TRUE(text.starts_with("### 001 Table 2: partly\n\n| number | of | is |\n")) << text;
  EXPECT_NE(text.find("| golden (loss) | budget=8 | 2.750 ["), std::string::npos) << text;
  EXPECT_NE(text.find("| both | the whole table below | \xe2\x80\x93 |\n"), std::string::npos) << text;
  EXPECT_NE(text.find("A judgement"), std::string::npos);
  EXPECT_NE(text.find("Fixed afterwards, when the rows were known, 2026-11-23."), std::string::npos);
}

TEST(Verdict, StandsOnThePageAndAboveTheTables) {
  const test::TempFolder folder;
  const RowTable rows = losses();
  write_rows_atomically(folder / "rows.csv", rows.axes, rows.rows);
  const ReportPlan report = plan("reproduced_if: [" + kHolds + "], partly_if: [" + kHolds + "]");
  const std::string markdown = write_report(folder / "rows.csv", folder.path(), report, {.title = "T"});
  EXPECT_TRUE(markdown.starts_with("### 001 Table 2: reproduced\n")) << markdown;
  EXPECT_EQ(markdown.find("| partly |"), std::string::npos) << "it decides nothing any more";
  EXPECT_EQ(test::read_file(folder / "table.md"), markdown);
  const std::string page = test::read_file(folder / "index.html");
  EXPECT_NE(page.find("<a href=\"#verdicts\">Verdicts</a>"), std::string::npos);
  EXPECT_LT(page.find("001 Table 2: reproduced"), page.find("<h2 id=\"tables\">"));
}

// Otherwise a criterion that was written today would count as older than rows of yesterday.
TEST(Verdict, FixedBeforehandIsNoYoungerThanTheRows) {
  const VerdictPlan beforehand =
      plan("reproduced_if: [" + kHolds + "]", "fixed: beforehand, since: 2026-11-23").verdicts[0];
  EXPECT_NO_THROW(check_fixed(beforehand, "2026-11-23T01:00:00Z"));
  EXPECT_NO_THROW(check_fixed(beforehand, ""));
  const std::string error = test::user_error([&] { check_fixed(beforehand, "2026-11-22T23:59:59Z"); });
  EXPECT_TRUE(error.starts_with(
      "x.yaml:5:11: verdict '001 Table 2': fixed = beforehand: since 2026-11-23, but the rows are of 2026-11-22"))
      << error;
  EXPECT_NO_THROW(check_fixed(plan("reproduced_if: [" + kHolds + "]").verdicts[0], "2026-11-22"));
}

}  // namespace
}  // namespace kv
