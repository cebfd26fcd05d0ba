#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/report/cells.h"
#include "harness/report/escape.h"
#include "harness/report/table.h"

namespace kv {
namespace {

Row make_row(const std::string& policy, const std::string& budget, int sample, const std::string& metric,
             double value) {
  return {.experiment = "e",
          .model = "m",
          .data = "prose",
          .policy = policy,
          .device = "cpu",
          .sample = sample,
          .seed = 1,
          .metric = metric,
          .value = value,
          .axes = {budget}};
}

RowTable small_table() {
  RowTable table{.axes = {"budget"}};
  for (int sample = 0; sample < 2; ++sample) {
    table.rows.push_back(make_row("full", "256", sample, "loss_ratio", 1));
    table.rows.push_back(make_row("h2o", "256", sample, "loss_ratio", 1.5));
    table.rows.push_back(make_row("r-kv", "256", sample, "loss_ratio", 1.25 + sample * 0.5));
  }
  return table;
}

TablePlan small_plan() {
  TablePlan plan;
  plan.name = "t";
  plan.title = "Loss";
  plan.measure.metrics = {"loss_ratio"};
  plan.rows = {"policy"};
  plan.columns = {"budget"};
  plan.digits = 2;
  return plan;
}

bool has_note(const TableView& view, const std::string& text) {
  for (const std::string& note : view.notes) {
    if (note.find(text) != std::string::npos) return true;
  }
  return false;
}

// A cell of one sample has no other sample of its document; that documents are drawn in the other's interval is said.
TEST(Cells, ACellOfOneSampleHidesNoDocumentsOfOthers) {
  Cells cells;
  cells.cells[{"wg-kv"}].estimate = Estimate{.value = 1, .samples = 1, .clusters = 1};
  cells.cells[{"local"}].estimate = Estimate{.value = 1, .samples = 32, .clusters = 15};
  EXPECT_EQ(of_documents(counts_of(cells)), " of 1 to 15 documents");
  cells.cells[{"local"}].estimate->clusters = 32;
  EXPECT_EQ(of_documents(counts_of(cells)), "");
}

// 24 samples of six documents, each of one value: the interval is as wide as that of six samples, the note says so, and
// nothing counts as significant.
TEST(Cells, SamplesOfOneDocumentDoNotPassForIndependentOnes) {
  RowTable table{.axes = {"budget"}}, few{.axes = {"budget"}};
  for (int sample = 0; sample < 24; ++sample) {
    const int book = sample / 4;
    Row document = make_row("h2o", "256", sample, std::string(kDocumentMetric), 0);
    document.value.reset();
    document.text = fmt::format("book {}", book);
    table.rows.push_back(document);
    for (const char* policy : {"full", "h2o"}) {
      const double value = policy[0] == 'h' ? 2 + book : 1;
      table.rows.push_back(make_row(policy, "256", sample, "loss_ratio", value));
      if (sample % 4 == 0) few.rows.push_back(make_row(policy, "256", book, "loss_ratio", value));
    }
  }
  const Measure measure{.metrics = {"loss_ratio"}};
  const Question question{.measure = measure, .where = {}, .columns = {"policy"}};
  const Estimate clustered = *collect(table, question).cells.at({"h2o"}).estimate;
  const Estimate alone = *collect(few, question).cells.at({"h2o"}).estimate;
  EXPECT_EQ(clustered.samples, 24);
  EXPECT_EQ(clustered.clusters, 6);
  EXPECT_DOUBLE_EQ(clustered.interval->low, alone.interval->low);
  EXPECT_DOUBLE_EQ(clustered.interval->high, alone.interval->high);
  TablePlan plan = small_plan();
  plan.better = Better::kLower;
  const TableView view = build_table(plan, {}, table);
  EXPECT_TRUE(has_note(view, "n = 24 of 6 documents; 95 % bootstrap interval"));
  EXPECT_FALSE(has_note(view, "\xe2\x80\xa0"));
  for (int sample = 0; sample < 24; ++sample)
    table.rows[static_cast<size_t>(3 * sample)].text += std::to_string(sample);
  EXPECT_TRUE(has_note(build_table(plan, {}, table), "\xe2\x80\xa0"));
}

TEST(Cells, AverageWithinASampleBeforeTheyAverageSamples) {
  RowTable table{.axes = {}};
  // Sample 0 has heads 0, 0, 3 (mean 1), sample 1 one head of 3: the mean over samples is 2, over rows it would be 1.5.
  int head = 0;
  for (const auto& [sample, value] : std::vector<std::pair<int, double>>{{0, 0}, {0, 0}, {0, 3}, {1, 3}}) {
    Row row = make_row("h2o", "", sample, "recall", value);
    row.axes.clear();
    row.head = head++;
    table.rows.push_back(row);
  }
  const Measure measure{.metrics = {"recall"}};
  const Cells cells = collect(table, {.measure = measure, .where = {}, .columns = {"policy"}});
  EXPECT_DOUBLE_EQ(cells.cells.at({"h2o"}).estimate->value, 2);
  EXPECT_EQ(cells.cells.at({"h2o"}).estimate->samples, 2);
  EXPECT_EQ(cells.averaged, std::vector<std::string>{"head"});
}

TEST(Cells, AggregateByMedianAndMaximum) {
  RowTable table{.axes = {"budget"}};
  for (const double value : {1.0, 2.0, 9.0})
    table.rows.push_back(make_row("h2o", "1", static_cast<int>(value), "m", value));
  Measure measure{.metrics = {"m"}, .aggregate = Aggregate::kMedian};
  EXPECT_DOUBLE_EQ(
      collect(table, {.measure = measure, .where = {}, .columns = {"policy"}}).cells.at({"h2o"}).estimate->value, 2);
  measure.aggregate = Aggregate::kMax;
  EXPECT_DOUBLE_EQ(
      collect(table, {.measure = measure, .where = {}, .columns = {"policy"}}).cells.at({"h2o"}).estimate->value, 9);
}

TEST(Cells, ShowSecondsAndBytesInTheUnitAskedFor) {
  RowTable table{.axes = {"budget"}};
  for (const auto& [metric, unit] : {std::pair{"step_time", "s"}, {"kv_bytes", "bytes"}, {"tokens", "tokens"}}) {
    table.rows.push_back(make_row("h2o", "1", 0, metric, 250));
    table.rows.back().unit = unit;
  }
  const auto shown = [&](const char* metric, const char* unit) {
    const Measure measure{.metrics = {metric}, .unit = unit};
    const Cell cell = collect(table, {.measure = measure, .where = {}, .columns = {"policy"}}).cells.at({"h2o"});
    return std::pair(cell.estimate->value, cell.unit);
  };
  EXPECT_EQ(shown("step_time", "ms"), std::pair(250000.0, std::string("ms")));
  EXPECT_EQ(shown("kv_bytes", "GB"), std::pair(250 * 1e-9, std::string("GB")));
  EXPECT_EQ(shown("step_time", ""), std::pair(250.0, std::string("s")));
  EXPECT_EQ(shown("tokens", "ms"), std::pair(250.0, std::string("tokens")));
}

TEST(Cells, PoolARatioOverSamplesThatHaveBothMetrics) {
  RowTable table{.axes = {"budget"}};
  table.rows = {make_row("h2o", "1", 0, "a", 6), make_row("h2o", "1", 0, "b", 2), make_row("h2o", "1", 1, "a", 1),
                make_row("h2o", "1", 1, "b", 8), make_row("h2o", "1", 2, "a", 1000)};
  const Measure measure{.ratio = {"a", "b"}};
  const Cells cells = collect(table, {.measure = measure, .where = {}, .columns = {"policy"}});
  EXPECT_DOUBLE_EQ(cells.cells.at({"h2o"}).estimate->value, 0.7);
  EXPECT_EQ(cells.cells.at({"h2o"}).estimate->samples, 2);
}

// 15 / 5 = 3, not the mean of the samples' own ratios, and 2 in every draw where each sample has twice its denominator.
// A draw whose denominators sum to zero drops out.
TEST(Cells, ResampleBothSidesOfARatioTogether) {
  const auto pooled = [](const std::vector<double>& above, const std::vector<double>& below) {
    RowTable table{.axes = {"budget"}};
    for (int sample = 0; sample < 5; ++sample) {
      table.rows.push_back(make_row("h2o", "1", sample, "a", above[static_cast<size_t>(sample)]));
      table.rows.push_back(make_row("h2o", "1", sample, "b", below[static_cast<size_t>(sample)]));
    }
    const Measure measure{.ratio = {"a", "b"}};
    return *collect(table, {.measure = measure, .where = {}, .columns = {"policy"}}).cells.at({"h2o"}).estimate;
  };
  EXPECT_DOUBLE_EQ(pooled({1, 2, 3, 4, 5}, {2, 1, 1, 0.5, 0.5}).value, 3);
  const Estimate twice = pooled({2, 4, 6, 8, 10}, {1, 2, 3, 4, 5});
  EXPECT_DOUBLE_EQ(twice.interval->low, 2);
  EXPECT_DOUBLE_EQ(twice.interval->high, 2);
  const Estimate sparse = pooled({1, 1, 1, 1, 1}, {0, 0, 0, 0, 5});
  EXPECT_DOUBLE_EQ(sparse.value, 1);
  EXPECT_TRUE(std::isfinite(sparse.interval->high));
}

TEST(Cells, FilterByNumericValueNotBySpelling) {
  RowTable table{.axes = {"keep"}, .rows = {make_row("h2o", "0.5", 0, "m", 1), make_row("h2o", "0.25", 0, "m", 7)}};
  const Measure measure{.metrics = {"m"}};
  const Cells cells = collect(table, {.measure = measure, .where = {{"keep", {{"0.50"}}}}, .columns = {"policy"}});
  EXPECT_DOUBLE_EQ(cells.cells.at({"h2o"}).estimate->value, 1);
}

// All but those: what nobody had thought of is there, too. A case that was skipped as a whole is one of every metric.
TEST(Cells, FilterByWhatIsLeftOut) {
  RowTable table{.axes = {"keep"},
                 .rows = {make_row("full", "", 0, "m", 1), make_row("h2o", "0.5", 0, "m", 2),
                          make_row("mine", "0.25", 0, "m", 3), make_row("mine", "0.25", 0, "other", 4)}};
  Row skipped = make_row("tova", "0.25", 0, "", 0);
  skipped.value.reset();
  skipped.skipped = "too short";
  table.rows.push_back(skipped);
  const auto shown = [&](const Where& where) {
    const Measure measure{.metrics = {"m", "other"}};
    std::vector<Key> keys = collect(table, {.measure = measure, .where = where, .columns = {"policy"}}).keys;
    std::sort(keys.begin(), keys.end());
    return keys;
  };
  EXPECT_EQ(shown({{"policy", {{"full"}, true}}}), (std::vector<Key>{{"h2o"}, {"mine"}, {"tova"}}));
  EXPECT_EQ(shown({{"policy", {{"full", "mine"}, true}}}), (std::vector<Key>{{"h2o"}, {"tova"}}));
  EXPECT_EQ(shown({{"keep", {{"0.250"}, true}}}), (std::vector<Key>{{"full"}, {"h2o"}}));
  EXPECT_EQ(shown({{"metric", {{"m"}, true}}}), (std::vector<Key>{{"mine"}, {"tova"}}));
}

TEST(Table, ShowsThePapersNumbersOnlyOfWhatIsNotLeftOut) {
  TablePlan plan = small_plan();
  plan.paper = "p";
  plan.where = {{"policy", {{"full"}, true}}};
  PaperBlock block{.table = "Table 2"};
  for (const char* policy : {"full", "h2o"}) {
    block.values.push_back({.keys = {{"policy", policy}, {"budget", "256"}}, .printed = "1.7", .value = 1.7});
  }
  const std::string text = to_markdown(build_table(plan, {{"p", block}}, small_table()));
  EXPECT_EQ(text.find("full"), std::string::npos) << text;
  EXPECT_NE(text.find("1.7"), std::string::npos) << text;
}

// The interval needs five samples: of four it would be about their range.
TEST(Table, ShowsTheIntervalOfFiveSamplesAndNoneOfFour) {
  const auto view_of = [](int samples) {
    RowTable rows{.axes = {"budget"}};
    for (int sample = 0; sample < samples; ++sample)
      rows.rows.push_back(make_row("r-kv", "256", sample, "loss_ratio", 1 + sample));
    return build_table(small_plan(), {}, rows);
  };
  EXPECT_EQ(view_of(4).rows[0][1].interval, "");
  EXPECT_TRUE(has_note(view_of(4), "n = 4; no interval below 5 samples."));
  EXPECT_NE(view_of(5).rows[0][1].interval, "");
  EXPECT_TRUE(has_note(view_of(5), "n = 5; 95 % bootstrap interval."));
  RowTable mixed = small_table();
  for (int sample = 2; sample < 6; ++sample)
    mixed.rows.push_back(make_row("r-kv", "256", sample, "loss_ratio", 1.25 + sample * 0.5));
  EXPECT_TRUE(has_note(build_table(small_plan(), {}, mixed),
                       "n = 2 to 6; 95 % bootstrap interval, where there are at least 5 samples."));
}

TEST(Table, ShowsTheMeanOfEachCell) {
  const TableView view = build_table(small_plan(), {}, small_table());
  EXPECT_EQ(to_markdown(view),
            "### Loss\n\n"
            "| policy | budget=256 |\n"
            "|:---|---:|\n"
            "| full | 1.00 |\n"
            "| h2o | 1.50 |\n"
            "| r-kv | 1.50 |\n\n"
            "Each number: mean over samples, n = 2; no interval below 5 samples.  \n");
}

TEST(Table, MarksAllBestValuesAmongTheRankedRows) {
  TablePlan plan = small_plan();
  plan.better = Better::kLower;
  plan.unranked = {"full"};
  const TableView view = build_table(plan, {}, small_table());
  EXPECT_FALSE(view.rows[0][1].bold);
  EXPECT_TRUE(view.rows[1][1].bold);
  EXPECT_TRUE(view.rows[2][1].bold);
  EXPECT_TRUE(has_note(view, "not ranked: full"));
}

// h2o is best. snapkv is worse by 0.5 on every sample. r-kv is worse by 1 and better by 0.5 in turn, so that the
// interval of its difference holds zero although its number is not the best.
TEST(Table, TellsTheBestFromWhatSurelyDiffersFromIt) {
  for (const int samples : {7, 8}) {
    RowTable rows{.axes = {"budget"}, .rows = {}};
    for (int sample = 0; sample < samples; ++sample) {
      rows.rows.push_back(make_row("h2o", "256", sample, "loss_ratio", 1 + sample));
      rows.rows.push_back(make_row("snapkv", "256", sample, "loss_ratio", 1.5 + sample));
      rows.rows.push_back(make_row("r-kv", "256", sample, "loss_ratio", (sample % 2 == 0 ? 2 : 0.5) + sample));
    }
    TablePlan plan = small_plan();
    plan.better = Better::kLower;
    const TableView view = build_table(plan, {}, rows);
    EXPECT_TRUE(view.rows[0][1].bold);
    EXPECT_FALSE(view.rows[0][1].differs);
    EXPECT_FALSE(view.rows[1][1].bold);
    EXPECT_EQ(view.rows[1][1].differs, samples == 8);
    EXPECT_FALSE(view.rows[2][1].differs);
    EXPECT_EQ(has_note(view, "differs from it"), samples == 8);
    EXPECT_TRUE(has_note(view, "Bold: the best of its column by its number alone"));
    EXPECT_EQ(to_markdown(view).find("\xe2\x80\xa0 [") != std::string::npos, samples == 8);
    EXPECT_EQ(to_latex(view).find("$^\\dagger$") != std::string::npos, samples == 8);
  }
}

TEST(Table, OfTwoKeysHasHeadsOfTwoLevels) {
  RowTable rows{.axes = {"budget"}, .rows = {}};
  for (const char* data : {"prose", "code"}) {
    for (const char* metric : {"recall", "cosine"}) {
      rows.rows.push_back(make_row("h2o", "256", 0, metric, 1));
      rows.rows.back().data = data;
    }
  }
  TablePlan plan = small_plan();
  plan.measure.metrics = {"recall", "cosine"};
  plan.columns = {"data", "metric"};
  const TableView view = build_table(plan, {}, rows);
  const std::string latex = to_latex(view), html = to_html(view);
  EXPECT_NE(latex.find(" & \\multicolumn{2}{c}{prose} & \\multicolumn{2}{c}{code} \\\\\n"
                       "\\cmidrule(lr){2-3}\\cmidrule(lr){4-5}\n"
                       "policy & recall & cosine & recall & cosine \\\\\n"),
            std::string::npos)
      << latex;
  EXPECT_NE(html.find("<tr><th scope=\"col\" rowspan=\"2\">policy</th><th scope=\"colgroup\" class=\"group\" "
                      "colspan=\"2\">prose</th>"),
            std::string::npos)
      << html;
  EXPECT_NE(to_markdown(view).find("| policy | prose, recall | prose, cosine | code, recall |"), std::string::npos);
}

TEST(Table, OfOneKeyHasOneHead) {
  EXPECT_EQ(to_latex(build_table(small_plan(), {}, small_table())).find("multicolumn"), std::string::npos);
}

TEST(Table, PutsThePapersNumbersBesideOursAndRanksThem) {
  TablePlan plan = small_plan();
  plan.paper = "t2";
  plan.kendall = true;
  RowTable rows = small_table();
  rows.rows.push_back(make_row("snapkv", "256", 0, "loss_ratio", 2));
  const auto value = [](const std::string& policy, const std::string& printed) {
    return PaperValue{
        .keys = {{"policy", policy}, {"budget", "256.0"}}, .printed = printed, .value = *parse_number(printed)};
  };
  const std::map<std::string, PaperBlock> paper = {{"t2",
                                                    {.table = "Table 2",
                                                     .page = "7",

                                                     .values = {value("full", "1.0000"), value("h2o", "1.2730"),
                                                                value("snapkv", "1.1"), value("foresight", "1.05")}}}};
  const TableView view = build_table(plan, paper, rows);
  EXPECT_EQ(view.header, (std::vector<std::string>{"policy", "budget=256", "paper"}));
  EXPECT_NE(to_html(view).find("colspan=\"2\">budget=256</th>"), std::string::npos);
  EXPECT_EQ(view.names, (std::vector<std::string>{"", "ours", "paper"}));
  EXPECT_EQ(view.rows[1][2].text, "1.2730");
  EXPECT_EQ(view.rows[4][0].text, "foresight");
  EXPECT_EQ(view.rows[4][1].text, "\xe2\x80\x93");
  EXPECT_EQ(view.rows[4][2].text, "1.05");
  // Ours: full < h2o < snapkv; the paper's: full < snapkv < h2o. One of three pairs is swapped: tau = 1/3.
  EXPECT_EQ(view.rows[5][1].text, "0.33");
  EXPECT_TRUE(has_note(view, "Paper: Table 2, page 7."));
}

TEST(Table, ShowsASkippedCaseWithItsReason) {
  RowTable rows = small_table();
  Row skipped = make_row("tova", "256", 0, "", 0);
  skipped.value.reset();
  skipped.skipped = "text too short";
  rows.rows.push_back(skipped);
  skipped.policy = "h2o";
  skipped.sample = 5;
  rows.rows.push_back(skipped);
  const TableView view = build_table(small_plan(), {}, rows);
  EXPECT_EQ(view.rows[3][1].text, "skipped: text too short");
  EXPECT_TRUE(has_note(view, "h2o, budget=256: 1 of the samples skipped: text too short."));
}

TEST(Table, SaysOnceThatAllOfAColumnLackTheSameSamples) {
  RowTable rows = small_table();
  for (const char* policy : {"full", "h2o", "r-kv"}) {
    rows.rows.push_back(make_row(policy, "256", 7, "", 0));
    rows.rows.back().value.reset();
    rows.rows.back().skipped = "the full cache fails";
  }
  const TableView view = build_table(small_plan(), {}, rows);
  EXPECT_TRUE(has_note(view, "budget=256: 1 of the samples skipped: the full cache fails."));
  EXPECT_FALSE(has_note(view, "h2o"));
}

TEST(Table, WithoutRowsSaysWhichMetricHasNone) {
  TablePlan plan = small_plan();
  plan.measure.metrics = {"no_such"};
  const TableView view = build_table(plan, {}, small_table());
  EXPECT_TRUE(view.rows.empty());
  EXPECT_TRUE(has_note(view, "No rows with a value for metric no_such."));
}

TEST(Table, SaysWhatACellIsAMeanOver) {
  RowTable rows = small_table();
  rows.rows.push_back(make_row("h2o", "512", 0, "loss_ratio", 1));
  TablePlan plan = small_plan();
  plan.columns.clear();
  EXPECT_TRUE(has_note(build_table(plan, {}, rows), "taken over all values of: budget."));
}

TEST(Table, ListsTheLargestRowsOfAGroup) {
  RowTable rows{.axes = {"budget"}};
  for (int i = 0; i < 3; ++i) {
    rows.rows.push_back(make_row("h2o", "1", 0, "top", i));
    rows.rows.back().text = std::string(1, static_cast<char>('a' + i));
  }
  TablePlan plan = small_plan();
  plan.kind = TableKind::kListing;
  plan.measure.metrics = {"top"};
  plan.columns = {"text", "value"};
  plan.limit = 2;
  const TableView view = build_table(plan, {}, rows);
  ASSERT_EQ(view.rows.size(), 2u);
  EXPECT_EQ(view.rows[0][1].text, "c");
  EXPECT_EQ(view.rows[1][2].text, "1.00");
}

TEST(Table, EscapesForEachFormat) {
  TableView view{.name = "t", .title = "a_b & <c>", .header = {"x|y"}, .notes = {"50 %"}};
  view.rows.push_back({{.kind = TableCell::Kind::kText, .text = "1|2\n<i>_%"}});
  EXPECT_NE(to_markdown(view).find("| 1\\|2\\\\n&lt;i>_% |"), std::string::npos);
  EXPECT_NE(to_latex(view).find("1|2\\textbackslash{}n\\textless{}i\\textgreater{}\\_\\%"), std::string::npos);
  EXPECT_NE(to_latex(view).find("\\caption{a\\_b \\& \\textless{}c\\textgreater{}. 50 \\%}"), std::string::npos);
  EXPECT_NE(to_html(view).find("<td>1|2\\n&lt;i&gt;_%</td>"), std::string::npos);
}

TEST(FormatNumber, KeepsWhatMatters) {
  EXPECT_EQ(format_number(1.23456, 3), "1.235");
  EXPECT_EQ(format_number(-0.0, 2), "0.00");
  EXPECT_EQ(format_number(0.0, 2), "0.00");
  EXPECT_EQ(format_number(0.00001234, 3), "1.23e-05");
  EXPECT_EQ(format_number(12582912.0, 3), "12582912");
  EXPECT_EQ(format_number(1.23456e12, 3), "1.23e+12");
}

TEST(Printable, ShowsBrokenUtf8AndControlCharacters) {
  EXPECT_EQ(printable("a\xe2\x82z"), "a\xef\xbf\xbd\xef\xbf\xbdz");
  EXPECT_EQ(printable("caf\xc3\xa9"), "caf\xc3\xa9");
  EXPECT_EQ(printable("\n\x07"), "\\n\\x07");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // a surrogate
}

}  // namespace
}  // namespace kv
