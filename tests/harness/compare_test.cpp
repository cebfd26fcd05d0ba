#include "harness/compare.h"

#include <gtest/gtest.h>

#include "kernels/error.h"

namespace kv {
namespace {

RowTable make_table(const std::vector<double>& values, const std::string& metric = "loss_ratio") {
  RowTable table{.axes = {"budget"}, .rows = {}};
  int sample = 0;
  for (const double value : values) {
    table.rows.push_back({.experiment = "e",
                          .model = "m",
                          .data = "prose",
                          .policy = "h2o",
                          .device = "cpu",
                          .sample = sample++,
                          .seed = 1,
                          .metric = metric,
                          .value = value,
                          .axes = {"256"}});
  }
  return table;
}

Verdict verdict_of(const std::vector<double>& a, const std::vector<double>& b, const std::string& metric = "loss_ratio",
                   const CompareOptions& options = {}) {
  return compare_rows(make_table(a, metric), make_table(b, metric), options).rows.at(0).verdict;
}

TEST(Compare, PairsSamplesAndReportsTheirDifference) {
  const CompareResult result = compare_rows(make_table({1, 10, 100, 5, 9}), make_table({2, 11, 101, 6, 10}));
  ASSERT_EQ(result.rows.size(), 1u);
  const Comparison& row = result.rows[0];
  EXPECT_DOUBLE_EQ(row.mean_a, 25);
  EXPECT_DOUBLE_EQ(row.mean_b, 26);
  EXPECT_DOUBLE_EQ(row.difference.value, 1);
  EXPECT_DOUBLE_EQ(row.difference.interval->low, 1);
  EXPECT_EQ(row.difference.samples, 5);
  EXPECT_EQ(result.pairs, 5u);
}

TEST(Compare, JudgesByTheIntervalAndTheDirectionOfTheMetric) {
  EXPECT_EQ(verdict_of({2, 3, 4, 5, 6}, {1, 2, 3, 4, 5}), Verdict::kBetter);
  EXPECT_EQ(verdict_of({1, 2, 3, 4, 5}, {2, 3, 4, 5, 6}), Verdict::kWorse);
  EXPECT_EQ(verdict_of({1, 2, 3, 4, 5}, {2, 3, 4, 5, 6}, "recall"), Verdict::kBetter);
  EXPECT_EQ(verdict_of({1, 2, 3, 4, 5}, {2, 3, 4, 5, 6}, "events"), Verdict::kDiffers);
  EXPECT_EQ(verdict_of({1, 2, 3, 4, 5}, {2, 3, 4, 5, 6}, "events", {.better = {{"events", Better::kHigher}}}),
            Verdict::kBetter);
}

TEST(Compare, CallsSameWhatLiesWithinTheTolerance) {
  EXPECT_EQ(verdict_of({1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}), Verdict::kSame);
  EXPECT_EQ(verdict_of({1, 2, 3, 4, 5}, {1.001, 2.001, 3.001, 4.001, 5.001}), Verdict::kSame);
  EXPECT_EQ(verdict_of({1, 2, 3, 4, 5}, {1.001, 2.001, 3.001, 4.001, 5.001}, "loss_ratio", {.tolerance = 0}),
            Verdict::kWorse);
}

// Five pairs of one document tell as much as one pair.
TEST(Compare, PairsOfOneDocumentAreNotIndependent) {
  RowTable a = make_table({1, 2, 3, 4, 5});
  const RowTable b = make_table({2, 3, 4, 5, 6});
  EXPECT_EQ(compare_rows(a, b).rows.at(0).verdict, Verdict::kWorse);
  for (int sample = 0; sample < 5; ++sample) {
    Row document = a.rows[static_cast<size_t>(sample)];
    document.metric = kDocumentMetric;
    document.value.reset();
    document.text = "book";
    a.rows.push_back(document);
  }
  const CompareResult result = compare_rows(a, b);
  ASSERT_EQ(result.rows.size(), 1u);
  EXPECT_EQ(result.rows[0].verdict, Verdict::kAmbiguous);
}

// The range of four differences is no interval of their mean.
TEST(Compare, HasNoIntervalOfFewSamples) {
  const CompareResult result = compare_rows(make_table({1, 2, 3, 4}), make_table({2, 3, 4, 5}));
  EXPECT_FALSE(result.rows.at(0).difference.interval);
  EXPECT_EQ(result.rows.at(0).verdict, Verdict::kAmbiguous);
  EXPECT_EQ(verdict_of({1, 2}, {1, 2}), Verdict::kSame);
}

TEST(Compare, CallsAmbiguousWhatMoreSamplesWouldTell) {
  EXPECT_EQ(verdict_of({1, 2, 3, 4, 5}, {2, 1, 3.5, 3.5, 5}), Verdict::kAmbiguous);
  EXPECT_EQ(verdict_of({1}, {2}), Verdict::kAmbiguous);
  EXPECT_EQ(verdict_of({1}, {1}), Verdict::kSame);
}

TEST(Compare, CountsRowsWithoutAPartner) {
  RowTable b = make_table({1, 2, 3});
  b.rows[0].sample = 9;
  const CompareResult result = compare_rows(make_table({1, 2, 3}), b);
  EXPECT_EQ(result.pairs, 2u);
  EXPECT_EQ(result.only_a, 1u);
  EXPECT_EQ(result.only_b, 1u);
}

TEST(Compare, AveragesTheHeadsOfASampleBeforeTheBootstrap) {
  RowTable a{.axes = {}, .rows = {}};
  for (int head = 0; head < 8; ++head) {
    a.rows.push_back({.policy = "h2o", .sample = 0, .head = head, .metric = "recall", .value = head});
  }
  const CompareResult result = compare_rows(a, a);
  ASSERT_EQ(result.rows.size(), 1u);
  EXPECT_EQ(result.rows[0].difference.samples, 1);
  EXPECT_DOUBLE_EQ(result.rows[0].mean_a, 3.5);
  EXPECT_EQ(result.pairs, 8u);
}

TEST(Compare, LeavesTimingsOutUnlessAsked) {
  EXPECT_TRUE(compare_rows(make_table({1, 2}, "replay_time"), make_table({1, 2}, "replay_time")).rows.empty());
  EXPECT_EQ(
      compare_rows(make_table({1, 2}, "replay_time"), make_table({1, 2}, "replay_time"), {.timings = true}).rows.size(),
      1u);
}

TEST(Compare, OfTwoModelsPairsTheirOnlyModels) {
  RowTable b = make_table({1, 2, 3});
  for (Row& row : b.rows) row.model = "other";
  EXPECT_EQ(compare_rows(make_table({1, 2, 3}), b).pairs, 3u);
  b.rows[0].model = "m";
  EXPECT_EQ(compare_rows(make_table({1, 2, 3}), b).pairs, 1u);
}

TEST(Compare, LeavesOutAnAxisOfOneValueAndRefusesOneOfMany) {
  RowTable b = make_table({1, 2, 3});
  b.axes.push_back("keep");
  for (Row& row : b.rows) row.axes.push_back("0.5");
  EXPECT_EQ(compare_rows(make_table({1, 2, 3}), b).pairs, 3u);
  b.rows[1].axes[1] = "0.25";
  EXPECT_THROW(compare_rows(make_table({1, 2, 3}), b), UserError);
}

TEST(Compare, WritesMarkdownAndCsv) {
  RowTable a = make_table({1.5, 1.5, 1.5, 1.5, 1.5});
  for (Row& row : a.rows) row.policy = "h2o, \"old\"";
  const CompareResult result = compare_rows(a, a);
  EXPECT_EQ(to_csv(result),
            "metric,policy,data,budget,unit,mean_a,mean_b,difference,low,high,samples,verdict\n"
            "loss_ratio,\"h2o, \"\"old\"\"\",prose,256,,1.5,1.5,0,0,0,5,same\n");
  const std::string markdown = to_markdown(result);
  EXPECT_NE(markdown.find(
                "| loss_ratio | h2o, \"old\" | prose | 256 | 1.5000 | 1.5000 | 0.0000 [0.0000, 0.0000] | 5 | same |"),
            std::string::npos)
      << markdown;
  EXPECT_NE(markdown.find("5 rows paired, 0 only in A, 0 only in B."), std::string::npos);
}

}  // namespace
}  // namespace kv
