// Policies that turn tokens away, from a spec to rows; and where that is refused.

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "harness/metrics/metric.h"
#include "harness/protocols/protocol.h"
#include "harness/report/table.h"
#include "tests/support/slot_run_fixture.h"

namespace kv {
namespace {

class AdmittingRun : public SlotRun {
 protected:
  AdmittingRun() : SlotRun(16) {}
};

// Of 48 tokens the last one saw the first 2 and the newest 10; of a window that the text does not fill, all.
TEST_F(AdmittingRun, RowsSayWhatWasThere) {
  auto rows = run(with("[full, {policy: full, admission: {local: {sinks: 2, window: 10}}}, {policy: full, admission: "
                       "local, label: wide}, h2o, {policy: h2o, admission: {local: {sinks: 8, window: 12}}}, {policy: "
                       "snapkv, window: 4}]",
                       "loss, cache_size, recall, admission_rate, hidden_distance, output_distance"),
                  "out");
  ASSERT_EQ(rows["full"]["kept_tokens"], 48);
  EXPECT_EQ(rows["full"]["cache_size"], 1);
  EXPECT_EQ(rows["full+local"]["kept_tokens"], 12);
  EXPECT_NEAR(rows["full+local"]["cache_size"], 12.0 / 48, 1e-9);
  // Of an f32 key and value of 16 numbers each and a position; the admission adds when it expires, h2o a sum, and
  // SnapKV, whatever is held, 4 queries of each of the 4 heads that share a KV head.
  const double entry = 2 * 16 * 4 + 4;
  EXPECT_EQ(rows["full"]["cache_bytes"], 1);
  EXPECT_NEAR(rows["full+local"]["cache_bytes"], 12.0 / 48 * (entry + 4) / entry, 1e-8);
  EXPECT_NEAR(rows["h2o"]["cache_bytes"], rows["h2o"]["cache_size"] * (entry + 4) / entry, 1e-8);
  EXPECT_NEAR(rows["snapkv"]["cache_bytes"], rows["snapkv"]["cache_size"] + 4 * 4 * 16 * 4 / (48 * entry), 1e-8);
  EXPECT_NE(rows["full+local"]["loss_ratio"], 1);
  EXPECT_NEAR(rows["full+local"]["admission_rate"], 2.0 / 48, 1e-9);
  EXPECT_EQ(rows["full"]["admission_rate"], 1);
  EXPECT_EQ(rows["h2o"]["admission_rate"], 1) << "what is evicted was let in";
  for (const char* metric : {"hidden_distance", "hidden_distance_relative", "output_distance"}) {
    EXPECT_EQ(rows["full"][metric], 0) << metric;
    EXPECT_GT(rows["full+local"][metric], 0) << metric;
  }
  EXPECT_LT(rows["full+local"]["attended_pairs"], rows["full"]["attended_pairs"]);
  for (const char* metric : {"kept_tokens", "attended_pairs", "loss_ratio", "cache_size"}) {
    EXPECT_EQ(rows["wide"][metric], rows["full"][metric]) << metric;
  }
  EXPECT_EQ(rows["h2o"]["kept_tokens"], 16);
  EXPECT_EQ(rows["h2o+local"]["kept_tokens"], 16);
  EXPECT_LT(rows["h2o+local"]["attended_pairs"], rows["h2o"]["attended_pairs"]);
  EXPECT_TRUE(rows["h2o+local"].contains("recall"));
}

// The attention that a pass without an admission pays is the future: whoever keeps the same entries either way, as
// streaming does of what is younger than a window, keeps as much of it, though what lies in between is turned away.
TEST_F(AdmittingRun, TheFutureIsThatOfTheFullCache) {
  auto rows = run(with("[streaming, {policy: streaming, admission: &local {local: {sinks: 4, window: 30}}}, "
                       "{policy: full, admission: *local}]",
                       "recall, loss"),
                  "out");
  EXPECT_NE(rows["full+local"]["loss_ratio"], 1) << "a pass under the admission is another one";
  EXPECT_EQ(rows["streaming+local"]["recall"], rows["streaming"]["recall"]);
}

// Whatever the number of samples that run together.
TEST_F(AdmittingRun, RowsDependOnNoBatch) {
  const std::string yaml = with(
      "[{policy: full, admission: {local: {sinks: 2, window: 10}}}, {policy: streaming, "
      "admission: {local: {sinks: 8, window: 12}}}]");
  run(yaml + "batch: 1\n", "alone");
  run(yaml + "batch: 3\n", "together");
  EXPECT_EQ(rows_of("alone"), rows_of("together"));
}

// Of 48 tokens about 8 + 40 / 2 stay, so some of these budgets are not reached at the last event, at token 48 - 8, and
// passed at the end: what came since is no failure of the policy.
TEST_F(AdmittingRun, ABudgetMayBePassedAfterTheLastEventAlone) {
  const std::string yaml = test::replaced(
      with("[{policy: streaming, allocation: global, admission: {wg-kv: {window: 8, drop: 0.5}}}]"),
      "{budget: 16, interval: 8}", "{budget: [22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32], interval: 8}");
  EXPECT_EQ(run_experiment(spec_of(yaml), options("late")).failed, 0);
  int late = 0;
  for (const Row& row : read_rows(folder_ / "late" / "rows.csv").rows) {
    const double budget = std::stod(row.axes.front());
    if (row.metric == "kept_tokens" && row.value) late += *row.value > budget ? 1 : 0;
  }
  EXPECT_GT(late, 0) << "else this shows nothing";
}

TEST_F(AdmittingRun, AnAxisOfAdmissionsIsOfAllPolicies) {
  const std::string yaml = test::replaced(with("[full, streaming]"), "{budget: 16, interval: 8}",
                                          "{budget: 16, interval: 8, admission: [none, local]}");
  const RunSummary summary = run_experiment(spec_of(yaml), options("axis"));
  EXPECT_EQ(summary.cases, 4 * 3);
  EXPECT_EQ(summary.failed, 0);
}

// Of 48 tokens the newest 10 or 20 and 2 sinks: the shares are no axis, and stand along x. At a share between the two a
// sample's loss lies between its own.
TEST_F(AdmittingRun, AnOptionOfAnAdmissionSweepsWhatIsComparedAtEqualSize) {
  const std::string yaml =
      test::replaced(test::replaced(with("[full, {policy: full, admission: {local: {sinks: 2}}, label: local}]"),
                                    "{budget: 16, interval: 8}", "{budget: 16, interval: 8, local.window: [10, 20]}"),
                     "tables: []\n",
                     "tables: [{name: equal, metric: loss_ratio, rows: policy, at: {cache_size: [0.3, 1]}}]\n"
                     "plots: [{name: curve, kind: curve, metric: loss_ratio, x: cache_size, series: policy}]\n");
  const Spec spec = spec_of(yaml);
  EXPECT_EQ(run_experiment(spec, options("swept")).failed, 0);
  std::map<std::string, double> sizes, losses;  // by the window; losses are means over the three samples
  const RowTable rows = read_rows(folder_ / "swept" / "rows.csv");
  const auto window = std::find(rows.axes.begin(), rows.axes.end(), "local.window") - rows.axes.begin();
  for (const Row& row : rows.rows) {
    const std::string& key = row.axes[static_cast<size_t>(window)];
    if (row.metric == "cache_size") sizes[key] = *row.value;
    if (row.metric == "loss_ratio") losses[key] += *row.value / 3;
  }
  EXPECT_EQ(sizes[""], 1);
  EXPECT_NEAR(sizes["10"], 12.0 / 48, 1e-9);
  EXPECT_NEAR(sizes["20"], 22.0 / 48, 1e-9);
  const double low = losses["10"], high = losses["20"];
  EXPECT_NE(low, high);
  const double between = low + (0.3 - sizes["10"]) / (sizes["20"] - sizes["10"]) * (high - low);
  const TableView table = build_table(spec.report.tables.at(0), {}, rows);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0][1].text, "not bracketed: in 1 setting cache_size is 1.000");
  EXPECT_EQ(table.rows[0][2].text, "1.000");
  EXPECT_EQ(table.rows[1][1].text, format_number(between, 3));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "swept" / "curve.svg"));
}

// What may be named along x is what rows hold of whole samples.
TEST_F(AdmittingRun, NumbersOfASampleAreDeclared) {
  const std::string yaml = test::replaced(with("[full, streaming]",
                                               "loss, cosine, cache_size, {metric: recall, terms: all}, entropy_split, "
                                               "local_error, {metric: dilution, useful: both}, hidden_distance, "
                                               "output_distance, admission_rate"),
                                          "interval: 8}", "interval: 8, cut_by: itself}");
  const Spec spec = spec_of(yaml);
  EXPECT_EQ(run_experiment(spec, options("numbers")).failed, 0);
  std::set<std::string> declared(spec.protocol->numbers.begin(), spec.protocol->numbers.end());
  for (const Component& metric : spec.metrics) {
    const auto names = make_metric(metric.name, metric.options)->numbers();
    EXPECT_FALSE(names.empty()) << metric.name;
    declared.insert(names.begin(), names.end());
  }
  std::set<std::string> found;
  for (const Row& row : read_rows(folder_ / "numbers" / "rows.csv").rows) {
    if (row.sample && row.value && !row.layer && !row.head && !row.x) found.insert(row.metric);
  }
  EXPECT_GT(found.size(), 30u);
  for (const std::string& name : found) EXPECT_TRUE(declared.contains(name)) << name;
}

TEST_F(AdmittingRun, WhatCannotBeIsRefusedInOneLine) {
  const std::string local = "[full, {policy: full, admission: local}]";
  EXPECT_TRUE(
      refusal(with("[{policy: full, admission: locl}]"))
          .ends_with("unknown admission 'locl', did you mean 'local'? (expected one of: duo, local, none, wg-kv)"));
  EXPECT_TRUE(refusal(with("[{policy: full, admission: {local: {windw: 3}}}]")).find("did you mean 'window'?") !=
              std::string::npos);
  EXPECT_TRUE(refusal(with(local, "loss, survival"))
                  .ends_with("metric 'survival' does not know of entries that nobody sees yet, expected no admission "
                             "beside it"));
  EXPECT_TRUE(refusal(with("[{policy: snapkv, admission: {local: {window: 7}}}]"))
                  .ends_with("snapkv: judges by the newest 8 queries, expected no more than the 7 tokens for which "
                             "admission local lets all see an entry"));
  EXPECT_TRUE(refusal(test::replaced(with("[full, {policy: streaming, admission: local}]", "evicted_overlap"),
                                     "interval: 8}", "interval: 8, cut_by: golden}"))
                  .find("expected no admission") != std::string::npos);
  EXPECT_TRUE(
      refusal("# How much loss?\nmodel: " + ref::source_path("tests/data/llama") +
              "\nprotocol: profile\ndata: [{task: kv, tokens: 64}]\npolicies: [{policy: keydiff, admission: local}]\n")
          .ends_with("policy 'keydiff+local' under protocol profile takes no admission yet, expected none in place "
                     "of 'local'"));
}

}  // namespace
}  // namespace kv
