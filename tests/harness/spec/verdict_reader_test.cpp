#include <gtest/gtest.h>

#include "harness/spec/report_plan.h"
#include "kernels/error.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

const std::vector<std::string> kAxes = {"budget"};

const std::string kTables =
    "tables:\n"
    "  - {name: loss, metric: loss, rows: [policy], columns: [budget], paper: printed}\n"
    "  - {name: less, metric: loss, rows: [policy], columns: [budget], paired: {column: policy, with: h2o}}\n"
    "  - {name: both, metric: [loss, cosine], rows: [policy], columns: [metric]}\n"
    "  - {name: worst, kind: listing, metric: loss, columns: [value]}\n"
    "paper: {printed: {table: Table 2, values: [{policy: h2o, budget: 8, value: 1}]}}\n";

ReportPlan parse(const std::string& verdicts) {
  const YamlDocument document(kTables + "verdict:\n" + verdicts, "x.yaml", {});
  MapReader spec(document, document.root(), "");
  ReportPlan plan = read_report(spec, {.axes = kAxes});
  spec.finish();
  return plan;
}

// A verdict with that check.
std::string with_check(const std::string& check, const std::string& key = "reproduced_if") {
  return "  - {item: 001 Table 2, criterion: c, fixed: beforehand, since: 2026-11-21, " + key + ": [" + check + "]}\n";
}

std::string with_keys(const std::string& keys) { return "  - {" + keys + "}\n"; }

TEST(VerdictReader, ReadsItemsCriterionAndChecks) {
  const ReportPlan plan = parse(
      "  - item: [001 Table 2, 001 Table 7]\n"
      "    criterion: h2o leads\n"
      "    fixed: beforehand\n"
      "    since: 2026-11-21\n"
      "    commit: 2e16115\n"
      "    reproduced_if:\n"
      "      - {table: loss, cell: {policy: [snapkv, r-kv], budget: 8}, over: {policy: h2o}, above: 1, by: interval}\n"
      "      - {table: loss, less: paper, within: [-0.5, 0.5], in: some}\n"
      "    partly_if: [{table: less, above: 0, below: 2}]\n"
      "    note: n\n"
      "  - {item: ours, criterion: c, fixed: afterwards, since: 2026-11-22, judged: partly, numbers: [{table: "
      "worst}]}\n");
  ASSERT_EQ(plan.verdicts.size(), 2u);
  const VerdictPlan& first = plan.verdicts[0];
  EXPECT_EQ(first.items, (std::vector<std::string>{"001 Table 2", "001 Table 7"}));
  EXPECT_TRUE(first.beforehand);
  EXPECT_EQ(first.since + " " + first.commit, "2026-11-21 2e16115");
  ASSERT_EQ(first.reproduced.size(), 2u);
  const VerdictCheck& over = first.reproduced[0];
  EXPECT_EQ(over.cell, (VerdictCheck::Values{{"policy", {"snapkv", "r-kv"}}, {"budget", {"8"}}}));
  EXPECT_EQ(over.partner, (VerdictCheck::Values{{"policy", {"h2o"}}}));
  EXPECT_TRUE(over.against == Against::kCell && over.relative && over.whole_interval && !over.in_some);
  EXPECT_EQ(over.above, 1);
  const VerdictCheck& paper = first.reproduced[1];
  EXPECT_TRUE(paper.against == Against::kPaper && !paper.relative && paper.in_some);
  EXPECT_EQ(paper.within, (std::array<double, 2>{-0.5, 0.5}));
  EXPECT_EQ(first.partly.size(), 1u);
  EXPECT_FALSE(first.judged.has_value());
  EXPECT_EQ(plan.verdicts[1].judged, Outcome::kPartly);
  EXPECT_FALSE(plan.verdicts[1].beforehand);
}

TEST(VerdictReader, SaysWhereABadOneIsAndWhatItExpects) {
  const std::string whole = "item: a, criterion: c, fixed: afterwards, since: 2026-11-21";
  for (const auto& [yaml, reason] : {
           std::pair(with_keys("item: a, criterion: c, fixed: beforhand, since: 2026-11-21, judged: partly"),
                     "fixed = beforhand: expected beforehand or afterwards, did you mean 'beforehand'?"),
           std::pair(with_keys("itm: a, criterion: c, fixed: afterwards, since: 2026-11-21"), "did you mean 'item'?"),
           std::pair(
               with_keys(
                   "criterion: c, fixed: afterwards, since: 2026-11-21, judged: partly, numbers: [{table: loss}]"),
               "lacks the key 'item'"),
           std::pair(with_keys("item: a, criterion: c, fixed: afterwards, since: yesterday, judged: partly"),
                     "since = yesterday: expected a day, YYYY-MM-DD"),
           std::pair(with_keys(whole + ", commit: HEAD, judged: partly"),
                     "commit = HEAD: expected 7 to 40 hexadecimal"),
           std::pair(with_keys(whole), "expected either 'reproduced_if' or 'partly_if', or 'judged'"),
           std::pair(with_keys(whole + ", judged: reprodced, numbers: [{table: loss}]"), "did you mean 'reproduced'?"),
           std::pair(with_keys(whole + ", judged: partly"), "'judged' lacks 'numbers'"),
           std::pair(with_keys(whole + ", judged: partly, numbers: [{table: loss, below: 1}]"), "expected no bound"),
           std::pair(with_keys(whole + ", partly_if: [{table: loss, below: 1}], numbers: [{table: loss}]"),
                     "expected 'numbers' beside 'judged' only"),
           std::pair(with_keys(whole + ", partly_if: []"), "expected a list of {table, cell, ...}"),
           std::pair(with_check("{table: lss, below: 1}"), "did you mean 'loss'? (loss, less, both, worst)"),
           std::pair(with_check("{table: loss, cels: {policy: h2o}, below: 1}"), "did you mean 'cell'?"),
           std::pair(with_check("{table: loss, cell: {polcy: h2o}, below: 1}"),
                     "cell names 'polcy', did you mean 'policy'?, which is no row or column of table 'loss'"),
           std::pair(with_check("{table: loss, cell: {layer: 1}, below: 1}"), "which is no row or column"),
           std::pair(with_check("{table: loss}"), "expected a bound: 'below', 'above' or 'within'"),
           std::pair(with_check("{table: loss, below: 1, above: 1}"), "expected more than 'above'"),
           std::pair(with_check("{table: loss, within: [2, 1]}"), "expected [low, high]"),
           std::pair(with_check("{table: loss, within: [0, 1], below: 2}"), "expected no 'below' or 'above' beside it"),
           std::pair(with_check("{table: loss, less: {policy: h2o}, over: {policy: h2o}, below: 1}"),
                     "expected one of 'less' and 'over'"),
           std::pair(with_check("{table: loss, over: {policy: [h2o, tova]}, below: 1}"),
                     "expected one value of 'policy'"),
           std::pair(with_check("{table: loss, over: nothing, below: 1}"),
                     "expected {column: value}, or the word paper"),
           std::pair(with_check("{table: both, over: paper, below: 1}"), "table 'both' has no paper block"),
           std::pair(with_check("{table: less, over: {budget: 8}, below: 1}"),
                     "table 'less' is of differences already"),
           std::pair(with_check("{table: both, cell: {metric: loss}, over: {metric: cosine}, below: 1, by: interval}"),
                     "expected number: metrics are not paired"),
           std::pair(with_check("{table: worst, below: 1}"), "expected a table of cells, not a listing"),
           std::pair(with_check("{table: loss, below: much}"), "below = much: expected a number"),
       }) {
    const std::string error = test::user_error([&yaml = yaml] { parse(yaml); });
    EXPECT_TRUE(error.starts_with("x.yaml:")) << error;
    EXPECT_NE(error.find(reason), std::string::npos) << error << "\nexpected: " << reason;
  }
}

TEST(VerdictReader, IsAListOfMaps) {
  EXPECT_NE(test::user_error([] { parse("  reproduced\n"); }).find("expected a list"), std::string::npos);
  EXPECT_NE(test::user_error([] { parse("  - reproduced\n"); }).find("expected a map of keys"), std::string::npos);
}

TEST(VerdictReader, EveryKeyIsDescribed) {
  std::string keys;
  for (const KeySection& section : verdict_keys()) {
    for (const DeclaredParam& key : section.keys) keys += key.key + " ";
  }
  EXPECT_EQ(keys,
            "item criterion fixed since commit testable_if reproduced_if partly_if judged numbers note "
            "table cell less over below above within by in ");
}

}  // namespace
}  // namespace kv
