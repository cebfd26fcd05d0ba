// Tables of numbers at equal realised size: interpolated a sample at a time between its own settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/report/table.h"
#include "harness/report/verdict.h"
#include "harness/spec/report_plan.h"

namespace kv {
namespace {

using testing::Contains;

// Settings of policies by an axis of their own: local's window, snapkv's budget.
class AtEqualSize : public testing::Test {
 protected:
  Row& add(const std::string& policy, const std::string& setting, int sample, const std::string& metric, double value) {
    const bool local = policy == "local";
    rows_.rows.push_back({.experiment = "e",
                          .model = "m",
                          .data = "prose",
                          .policy = policy,
                          .device = "cpu",
                          .sample = sample,
                          .seed = 1,
                          .metric = metric,
                          .value = value,
                          .axes = {local ? setting : "", local ? "" : setting}});
    return rows_.rows.back();
  }

  void add_setting(const std::string& policy, const std::string& setting, int sample, double size, double loss) {
    add(policy, setting, sample, "loss", loss);
    add(policy, setting, sample, "cache_size", size);
  }

  // Both have 0.25 between their first two settings, only the first has settings on both sides of 0.6.
  void add_two_samples() {
    add_setting("local", "8", 0, 0.2, 4);
    add_setting("local", "16", 0, 0.4, 2);
    add_setting("local", "32", 0, 0.8, 1);
    add_setting("local", "8", 1, 0.1, 6);
    add_setting("local", "16", 1, 0.3, 3);
    add_setting("local", "32", 1, 0.5, 2);
  }

  static TablePlan plan(std::vector<std::string> sizes) {
    TablePlan plan;
    plan.name = "t";
    plan.measure.metrics = {"loss"};
    plan.rows = {"policy"};
    plan.columns = {"cache_size"};
    plan.at = EqualSize{.metric = "cache_size", .values = std::move(sizes)};
    return plan;
  }

  TableView view(const TablePlan& plan) const { return build_table(plan, {}, rows_); }
  // Of one row, which follows its label.
  std::vector<std::string> numbers(const TablePlan& plan, std::size_t row = 0) const {
    std::vector<std::string> texts;
    const TableView table = view(plan);
    for (std::size_t i = 1; i < table.rows.at(row).size(); ++i) texts.push_back(table.rows[row][i].text);
    return texts;
  }

  RowTable rows_{.axes = {"local.window", "budget"}};
};

// At 0.25: 4 − 1/4 · 2 = 3.5 and 6 − 3/4 · 3 = 3.75, so 3.625. At 0.6: 2 − 1/2 · 1 = 1.5 of the first alone.
TEST_F(AtEqualSize, EachSampleIsTakenBetweenItsTwoNeighbouringSettings) {
  add_two_samples();
  const TableView table = view(plan({"0.25", "0.6", "0.90"}));
  EXPECT_EQ(table.header, (std::vector<std::string>{"policy", "cache_size=0.25", "cache_size=0.6", "cache_size=0.90"}));
  EXPECT_EQ(numbers(plan({"0.25", "0.6", "0.90"})),
            (std::vector<std::string>{"3.625", "1.500", "not bracketed: in 3 settings cache_size is 0.100 to 0.800"}));
  EXPECT_THAT(table.notes, Contains("Each number: mean over samples, n = 1 to 2; no interval below 5 samples."));
  EXPECT_THAT(table.notes,
              Contains("At equal cache_size: of each sample linear between its nearest settings on either side (of: "
                       "local.window); left out where one has none."));
  EXPECT_THAT(table.notes, Contains("local, cache_size=0.6: 1 of the samples left out, whose cache_size is 0.100 to "
                                    "0.500."));
}

// Rows come in the order of the axis; what counts is the order of the sizes.
TEST_F(AtEqualSize, NeighboursAreThoseBySizeWhateverTheOrderOfTheAxis) {
  add_setting("local", "8", 0, 0.8, 1);
  add_setting("local", "16", 0, 0.2, 4);
  add_setting("local", "32", 0, 0.4, 2);
  EXPECT_EQ(numbers(plan({"0.3"})), std::vector<std::string>{"3.000"});
}

TEST_F(AtEqualSize, ASettingThatHasTheSizeNeedsNoOther) {
  add_setting("full", "", 0, 1, 7);
  EXPECT_EQ(numbers(plan({"1", "0.5"})),
            (std::vector<std::string>{"7.000", "not bracketed: in 1 setting cache_size is 1.000"}));
}

// (4 + 6) / 2 = 5 at 0.2, so 5 − 1/2 · 4 = 3 at 0.4.
TEST_F(AtEqualSize, SettingsOfOneSizeAreOneAtTheirMean) {
  add_setting("local", "8", 0, 0.2, 4);
  add_setting("local", "9", 0, 0.2, 6);
  add_setting("local", "16", 0, 0.6, 1);
  EXPECT_EQ(numbers(plan({"0.2", "0.4"})), (std::vector<std::string>{"5.000", "3.000"}));
}

// Two layers: sizes 0.1 and 0.3, losses 3 and 5 in one setting, as 0.2 and 4 are.
TEST_F(AtEqualSize, RowsWithinASampleAreAveragedFirst) {
  for (const int layer : {0, 1}) {
    add("local", "8", 0, "loss", 3 + 2 * layer).layer = layer;
    add("local", "8", 0, "cache_size", 0.1 + 0.2 * layer).layer = layer;
  }
  add_setting("local", "16", 0, 0.4, 2);
  EXPECT_EQ(numbers(plan({"0.3"})), std::vector<std::string>{"3.000"});
  EXPECT_THAT(view(plan({"0.3"})).notes, Contains("Each number is taken over all values of: layer."));
}

// Sums at 0.3: 25 / 15 and 7 / 4, together 32 / 19; the quotients' own mean would be 1.708.
TEST_F(AtEqualSize, ARatioStaysAQuotientOfSums) {
  const auto add_sums = [&](const char* window, int sample, double size, double sum, double full) {
    add("local", window, sample, "cache_size", size);
    add("local", window, sample, "nll_sum", sum);
    add("local", window, sample, "nll_sum_full", full);
  };
  add_sums("8", 0, 0.2, 30, 10);
  add_sums("16", 0, 0.4, 20, 20);
  add_sums("8", 1, 0.2, 8, 4);
  add_sums("16", 1, 0.4, 6, 4);
  TablePlan ratio = plan({"0.3"});
  ratio.measure = {.ratio = {"nll_sum", "nll_sum_full"}};
  EXPECT_EQ(numbers(ratio), std::vector<std::string>{"1.684"});
}

// The setting in between is not there: 4 − 1/3 · 3 = 3 at 0.4, from 0.2 to 0.8.
TEST_F(AtEqualSize, ASkippedSettingIsNone) {
  add_two_samples();
  rows_.rows[2].value.reset();
  rows_.rows[2].skipped = "too long";
  std::erase_if(rows_.rows, [](const Row& row) { return row.sample == 1; });
  EXPECT_EQ(numbers(plan({"0.4"})), std::vector<std::string>{"3.000"});
  EXPECT_THAT(view(plan({"0.4"})).notes,
              Contains("local, cache_size=0.4: In 1 of the samples a setting skipped: too long."));
}

TEST_F(AtEqualSize, ASettingWithoutASizeIsNone) {
  add_two_samples();
  std::erase_if(rows_.rows, [](const Row& row) { return row.metric == "cache_size" && row.axes[0] == "16"; });
  EXPECT_EQ(numbers(plan({"0.5"})), std::vector<std::string>{"2.250"});  // 4 − 1/2 · 3 = 2.5; 2 at 0.5 itself
  std::erase_if(rows_.rows, [](const Row& row) { return row.metric == "cache_size"; });
  EXPECT_EQ(numbers(plan({"0.5"})), std::vector<std::string>{"no cache_size"});
  EXPECT_THAT(view(plan({"0.5"})).notes,
              Contains("No sample has settings on both sides of a cache_size that is asked for."));
}

// What would have bracketed the size is told.
TEST_F(AtEqualSize, ACellWithoutANumberSaysWhatWasSkippedToo) {
  add_setting("local", "8", 0, 0.2, 4);
  add_setting("local", "16", 0, 0.4, 2);
  rows_.rows[2].value.reset();
  rows_.rows[2].skipped = "too long";
  EXPECT_EQ(numbers(plan({"0.3"})), std::vector<std::string>{"not bracketed: in 1 setting cache_size is 0.200"});
  EXPECT_THAT(view(plan({"0.3"})).notes,
              Contains("local, cache_size=0.3: In 1 of the samples a setting skipped: too long."));
}

// Samples that have the size are those of a plain table, draw by draw.
TEST_F(AtEqualSize, IntervalsAreThoseOfAnyTable) {
  for (int s = 0; s < 12; ++s) add_setting("local", "8", s, 0.5, 1 + s % 5);
  TablePlan plain = plan({"0.5"});
  plain.at.reset();
  plain.columns.clear();
  const TableView at = view(plan({"0.5"}));
  EXPECT_FALSE(at.rows[0][1].interval.empty());
  EXPECT_EQ(at.rows[0][1].interval, view(plain).rows[0][1].interval);
  for (int s = 0; s < 12; ++s) {
    Row row = rows_.rows[0];
    row.sample = s;
    row.metric = kDocumentMetric;
    row.value.reset();
    row.text = s < 6 ? "a" : "b";
    rows_.rows.push_back(row);
  }
  EXPECT_THAT(view(plan({"0.5"})).notes,
              Contains("Each number: mean over samples, n = 12 of 2 documents; no interval below 5 documents."));
}

// At 0.5 local has 3 + 1.1 s, snapkv 2 + s; sample 5 of snapkv has no setting above. Over samples 0 to 4 the difference
// 1 + 0.1 s is 1.2.
class PairedAtEqualSize : public AtEqualSize {
 protected:
  PairedAtEqualSize() {
    for (int s = 0; s < 6; ++s) {
      add_setting("local", "8", s, 0.4, 4 + 1.1 * s);
      add_setting("local", "16", s, 0.6, 2 + 1.1 * s);
      add_setting("snapkv", "64", s, 0.3, 1 + s);
      if (s < 5) add_setting("snapkv", "128", s, 0.7, 3 + s);
    }
  }
};

TEST_F(PairedAtEqualSize, SamplesOfBothAreCompared) {
  TablePlan paired = plan({"0.5", "0.7"});
  paired.paired = Pairing{.column = "policy", .with = "snapkv"};
  EXPECT_EQ(numbers(paired),
            (std::vector<std::string>{"1.200", "not bracketed: in 2 settings cache_size is 0.400 to 0.600"}));
  const auto notes = view(paired).notes;
  EXPECT_THAT(notes, Contains("Each number: mean over samples less that of snapkv on the same samples, n = 5; 95 % "
                              "interval of the paired bootstrap."));
  EXPECT_THAT(notes, Contains("local, cache_size=0.5: 1 of snapkv's samples left out, whose cache_size is 0.300. 5 "
                              "pairs; 1 of its samples and 0 of snapkv's have no partner."));
  paired.paired->with = "local";
  paired.at->values = {"0.7"};
  EXPECT_EQ(numbers(paired),
            std::vector<std::string>{"local: not bracketed: in 2 settings cache_size is 0.400 to 0.600"});
}

// "X lies below Y at equal size, the interval excludes zero" is a check like any other.
TEST_F(PairedAtEqualSize, AVerdictHoldsByTheIntervalOfTheDifference) {
  const auto outcome = [&](const std::string& check) {
    const std::string yaml =
        "tables: [{name: t, metric: loss, rows: [policy], at: {cache_size: [0.5, 0.7]}}]\n"
        "verdict: [{item: 004 Figure 1, criterion: It holds., fixed: afterwards, since: 2026-11-25, reproduced_if: "
        "[{table: t, " +
        check + "}]}]\n";
    const YamlDocument document(yaml, "x.yaml", {});
    MapReader spec(document, document.root(), "");
    const std::vector<std::string> sizes = {"cache_size"};
    const ReportPlan report = read_report(spec, {.axes = rows_.axes, .numbers = sizes});
    return std::string(name_of(judge(report.verdicts[0], report, rows_).outcome));
  };
  const std::string snapkv = "cell: {policy: snapkv, cache_size: 0.50}, ", local = "cell: {policy: local}, ";
  EXPECT_EQ(outcome(snapkv + "less: {policy: local}, below: 0, by: interval"), "reproduced");
  EXPECT_EQ(outcome(snapkv + "less: {policy: local}, below: -1.1, by: interval"), "differs");
  EXPECT_EQ(outcome(snapkv + "over: {policy: local}, below: 1, by: interval"), "reproduced");
  EXPECT_EQ(outcome("cell: {policy: local, cache_size: 0.7}, less: {policy: snapkv}, above: 0, by: interval"),
            "untestable");
}

}  // namespace
}  // namespace kv
