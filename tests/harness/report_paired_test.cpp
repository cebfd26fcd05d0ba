// Tables of differences between cells, paired by sample.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "harness/report/table.h"

namespace kv {
namespace {

Row make_row(const std::string& policy, const std::string& allocation, int sample, double value) {
  return {.experiment = "e",
          .model = "m",
          .data = "prose",
          .policy = policy,
          .device = "cpu",
          .sample = sample,
          .seed = 1,
          .metric = "loss",
          .value = value,
          .axes = {allocation}};
}

// Every second sample is the harder one for every allocation. lu-kv: 1, 4; uniform: 3, 5; ada: 1.5, 3.5.
RowTable losses(int samples = 2) {
  RowTable table{.axes = {"allocation"}};
  for (int s = 0; s < samples; ++s) {
    const bool hard = s % 2 == 1;
    table.rows.push_back(make_row("snapkv", "uniform", s, hard ? 5 : 3));
    table.rows.push_back(make_row("snapkv", "ada", s, hard ? 3.5 : 1.5));
    table.rows.push_back(make_row("snapkv", "lu-kv", s, hard ? 4 : 1));
  }
  return table;
}

TablePlan plan() {
  TablePlan plan;
  plan.name = "t";
  plan.title = "Less lu-kv";
  plan.measure.metrics = {"loss"};
  plan.rows = {"policy", "allocation"};
  plan.digits = 2;
  plan.better = Better::kLower;
  plan.paired = Pairing{.column = "allocation", .with = "lu-kv"};
  return plan;
}

// uniform has 3 and 5, lu-kv 1 and 4, and so their ranges overlap. On the same samples uniform is worse by 2 and by 1,
// ada by 0.5 and −0.5.
TEST(PairedTable, TellsApartWhatTheSpreadOfSamplesHides) {
  EXPECT_EQ(to_markdown(build_table(plan(), {}, losses())),
            "### Less lu-kv\n\n"
            "| policy | allocation | loss |\n"
            "|:---|:---|---:|\n"
            "| snapkv | uniform | 1.50 |\n"
            "| snapkv | ada | 0.00 |\n\n"
            "Each number: mean over samples less that of lu-kv on the same rows of the same samples, n = 2; no "
            "interval below 5 samples.  \n"
            "Above 0: lu-kv is better.  \n"
            "\xe2\x80\xa0: the 95 % interval of the paired difference excludes zero (n of at least 8).  \n");
}

// Two samples that differ alike are no evidence, and an interval over so few is too narrow.
TEST(PairedTable, IsMarkedWhereEnoughSamplesExcludeZero) {
  for (const int samples : {7, 8}) {
    const TableView view = build_table(plan(), {}, losses(samples));
    EXPECT_EQ(view.rows[0].back().differs, samples == 8) << samples;  // uniform
    EXPECT_FALSE(view.rows[1].back().differs) << samples;             // ada
    EXPECT_FALSE(view.rows[0].back().bold) << samples;                // a difference has no rank
  }
}

// (8 − 5) / 5 = 60 %; of either sample alone (3 − 1) / 1 = 200 % and (5 − 4) / 4 = 25 %.
TEST(PairedTable, RelativeIsInPercentOfTheOther) {
  TablePlan relative = plan();
  relative.paired->relative = true;
  const TableView view = build_table(relative, {}, losses(6));
  EXPECT_EQ(view.header.back(), "loss (%)");
  EXPECT_EQ(view.rows[0].back().text, "60.00");
  double low = 0, high = 0;
  ASSERT_EQ(std::sscanf(view.rows[0].back().interval.c_str(), "[%lf, %lf]", &low, &high), 2);
  EXPECT_GE(low, 25);
  EXPECT_LT(low, 60);
  EXPECT_GT(high, 60);
  EXPECT_LE(high, 200);
}

bool has_note(const TableView& view, const std::string& note) {
  return std::find(view.notes.begin(), view.notes.end(), note) != view.notes.end();
}

TEST(PairedTable, SamplesThatOneSideLacksCountOnNeither) {
  RowTable rows = losses();
  rows.rows.push_back(make_row("snapkv", "uniform", 2, 1000));
  rows.rows.push_back(make_row("snapkv", "lu-kv", 3, 1000));
  const TableView view = build_table(plan(), {}, rows);
  EXPECT_EQ(view.rows[0].back().text, "1.50");
  EXPECT_TRUE(has_note(view, "snapkv, uniform: 2 pairs; 1 of its samples and 1 of lu-kv's have no partner."));
  EXPECT_TRUE(has_note(view, "snapkv, ada: 2 pairs; 0 of its samples and 1 of lu-kv's have no partner."));
}

// The table's cells are means over `keep`. Sample 0 of uniform has no row at 0.1, where every loss is large: less all
// of lu-kv's rows, uniform would seem the better by far. On the rows of both it is worse by 2 and by 1, as without 0.1.
TEST(PairedTable, RowsThatOneSideLacksCountOnNeither) {
  RowTable rows = losses();
  rows.axes.emplace_back("keep");
  for (Row& row : rows.rows) row.axes.emplace_back("0.5");
  const auto add = [&](const std::string& allocation, int sample, double value) {
    rows.rows.push_back(make_row("snapkv", allocation, sample, value));
    rows.rows.back().axes.emplace_back("0.1");
  };
  add("lu-kv", 0, 101);
  add("lu-kv", 1, 104);
  add("uniform", 1, 105);
  const TableView view = build_table(plan(), {}, rows);
  EXPECT_EQ(view.rows[0].back().text, "1.50");
  EXPECT_TRUE(has_note(view, "snapkv, uniform: In 1 of its pairs rows that one side lacks are left out."));
  EXPECT_EQ(view.rows[1].back().text, "0.00");  // ada, which has no row at 0.1
}

// A text that lu-kv lacks altogether, though samples and seeds have the same numbers.
TEST(PairedTable, ATextThatOneSideLacksCountsOnNeither) {
  RowTable rows = losses();
  rows.rows.push_back(make_row("snapkv", "uniform", 0, 1000));
  rows.rows.back().data = "code";
  const TableView view = build_table(plan(), {}, rows);
  EXPECT_EQ(view.rows[0].back().text, "1.50");
  EXPECT_TRUE(has_note(view, "snapkv, uniform: 2 pairs; 1 of its samples and 0 of lu-kv's have no partner."));
}

TEST(PairedTable, WithoutAPairSaysHowManyWereAlone) {
  RowTable rows{.axes = {"allocation"}};
  rows.rows.push_back(make_row("snapkv", "uniform", 0, 1));
  rows.rows.push_back(make_row("snapkv", "lu-kv", 1, 1));
  const TableView view = build_table(plan(), {}, rows);
  EXPECT_EQ(view.rows[0].back().text, "\xe2\x80\x93");
  EXPECT_TRUE(has_note(view, "snapkv, uniform: 0 pairs; 1 of its samples and 1 of lu-kv's have no partner."));
}

TEST(PairedTable, CountsTheSkippedSamplesOfBothSides) {
  RowTable rows = losses();
  for (const auto& [allocation, sample] : {std::pair{"uniform", 2}, {"lu-kv", 2}, {"lu-kv", 3}}) {
    rows.rows.push_back(make_row("snapkv", allocation, sample, 0));
    rows.rows.back().value.reset();
    rows.rows.back().skipped = "too long";
  }
  const TableView view = build_table(plan(), {}, rows);
  EXPECT_TRUE(
      has_note(view, "snapkv, uniform: 1 of the samples skipped: too long. 2 of lu-kv's samples skipped: too long."));
  EXPECT_TRUE(has_note(view, "snapkv, ada: 2 of lu-kv's samples skipped: too long."));
  rows.rows.push_back(rows.rows.back());
  rows.rows.back().axes = {"uniform"};
  EXPECT_TRUE(has_note(build_table(plan(), {}, rows), "snapkv, uniform: 2 of the samples of both skipped: too long."));
}

TEST(PairedTable, ShowsWhyThePartnerWasSkipped) {
  RowTable rows = losses();
  for (Row& row : rows.rows) {
    if (row.axes[0] != "lu-kv") continue;
    row.value.reset();
    row.skipped = "no profile";
  }
  EXPECT_EQ(build_table(plan(), {}, rows).rows[0].back().text, "lu-kv skipped: no profile");
}

// Pooled, of uniform (3 + 5) / (2 + 2) = 2 and of lu-kv (1 + 4) / 2 = 2.5.
TEST(PairedTable, OfARatioIsTheDifferenceOfThePooledOnes) {
  RowTable rows = losses();
  for (const Row& row : losses().rows) {
    rows.rows.push_back(row);
    rows.rows.back().metric = "full";
    rows.rows.back().value = row.axes[0] == "lu-kv" ? 1 : 2;
  }
  TablePlan ratio = plan();
  ratio.measure = {.metrics = {}, .ratio = {"loss", "full"}};
  EXPECT_EQ(build_table(ratio, {}, rows).rows[0].back().text, "-0.50");
}

// The medians of 2, 1, 9 and 3, 5, 4 are 2 and 4, not the median of the differences, which is 1.
TEST(PairedTable, OfMediansIsTheirDifference) {
  RowTable rows{.axes = {"allocation"}};
  for (const auto& [sample, value, other] : {std::tuple{0, 3.0, 2.0}, {1, 5.0, 1.0}, {2, 4.0, 9.0}}) {
    rows.rows.push_back(make_row("snapkv", "uniform", sample, value));
    rows.rows.push_back(make_row("snapkv", "lu-kv", sample, other));
  }
  TablePlan median = plan();
  median.measure.aggregate = Aggregate::kMedian;
  EXPECT_EQ(build_table(median, {}, rows).rows[0].back().text, "2.00");
}

// The full cache has no allocation: it is compared with each.
TEST(PairedTable, AnAxisThatDoesNotApplyToTheOtherFitsEveryValue) {
  RowTable rows = losses();
  rows.rows.push_back(make_row("full", "", 0, 0));
  rows.rows.push_back(make_row("full", "", 1, 2));
  TablePlan against_full = plan();
  against_full.paired = Pairing{.column = "policy", .with = "full"};
  const TableView view = build_table(against_full, {}, rows);
  ASSERT_EQ(view.rows.size(), 3u);
  EXPECT_EQ(view.rows[0].back().text, "3.00");
  EXPECT_EQ(view.rows[2].back().text, "1.50");
  // And the other way about the full cache has nothing to be compared with.
  EXPECT_EQ(build_table(plan(), {}, rows).rows.size(), 2u);
}

// A row of the full cache that lacks one axis and one that lacks the other fit ada's alike; uniform's fits one
// exactly.
TEST(PairedTable, LeavesOutACellThatFitsSeveralOthers) {
  RowTable rows{.axes = {"allocation", "keep"}};
  const auto add = [&](const std::string& policy, const std::string& allocation, const std::string& keep,
                       double value) {
    rows.rows.push_back(make_row(policy, allocation, 0, value));
    rows.rows.back().axes.push_back(keep);
  };
  add("full", "", "0.5", 1);
  add("full", "ada", "", 2);
  add("full", "uniform", "0.5", 4);
  add("snapkv", "ada", "0.5", 7);
  add("snapkv", "uniform", "0.5", 7);
  TablePlan against_full = plan();
  against_full.rows = {"policy", "allocation", "keep"};
  against_full.paired = Pairing{.column = "policy", .with = "full"};
  const TableView view = build_table(against_full, {}, rows);
  ASSERT_EQ(view.rows.size(), 1U);
  EXPECT_EQ(view.rows[0].back().text, "3.00");
  EXPECT_TRUE(has_note(view, "Left out, because each fits several cells of full: snapkv, ada, keep=0.5."));
  std::erase_if(rows.rows, [](const Row& row) { return row.axes[0] == "uniform"; });
  const TableView none = build_table(against_full, {}, rows);
  EXPECT_TRUE(none.rows.empty());
  EXPECT_EQ(none.notes,
            (std::vector<std::string>{"Left out, because each fits several cells of full: snapkv, ada, keep=0.5."}));
}

// The same within the cells of a table that is over both axes: 7 − 4 alone counts.
TEST(PairedTable, LeavesOutARowThatFitsSeveralOthers) {
  RowTable rows{.axes = {"allocation", "keep"}};
  const auto add = [&](const std::string& policy, const std::string& allocation, const std::string& keep,
                       double value) {
    rows.rows.push_back(make_row(policy, allocation, 0, value));
    rows.rows.back().axes.push_back(keep);
  };
  add("full", "", "0.5", 1);
  add("full", "ada", "", 2);
  add("full", "uniform", "0.5", 4);
  add("snapkv", "ada", "0.5", 1000);
  add("snapkv", "uniform", "0.5", 7);
  TablePlan against_full = plan();
  against_full.rows = {"policy"};
  against_full.paired = Pairing{.column = "policy", .with = "full"};
  const TableView view = build_table(against_full, {}, rows);
  ASSERT_EQ(view.rows.size(), 1U);
  EXPECT_EQ(view.rows[0].back().text, "3.00");
  EXPECT_TRUE(has_note(view, "snapkv: In 1 of its samples rows are left out that fit several of full's."));
}

TEST(PairedTable, SaysThatThereIsNothingToCompareWith) {
  TablePlan lost = plan();
  lost.paired->with = "lukv";
  const TableView view = build_table(lost, {}, losses());
  EXPECT_TRUE(view.rows.empty());
  EXPECT_EQ(view.notes.front(),
            "No row can be compared: allocation = lukv has no value for metric loss where another row has one.");
}

TEST(PairedTable, ShowsWhyACellWasSkipped) {
  RowTable rows = losses();
  for (Row& row : rows.rows) {
    row.value.reset();
    row.skipped = "the full cache fails";
  }
  EXPECT_EQ(build_table(plan(), {}, rows).rows[0].back().text, "skipped: the full cache fails");
}

}  // namespace
}  // namespace kv
