#include "harness/spec/report_plan.h"

#include <gtest/gtest.h>

#include "kernels/error.h"

namespace kv {
namespace {

const std::vector<std::string> kAxes = {"budget", "interval"}, kNumbers = {"cache_size", "loss_ratio", "recall"};

ReportPlan parse(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const YamlDocument document(yaml, "x.yaml", overrides);
  MapReader spec(document, document.root(), "");
  return read_report(spec, {.axes = kAxes, .numbers = kNumbers});
}

std::string error_of(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  try {
    parse(yaml, overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

bool starts(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

TEST(ReportPlan, OfASpecWithoutReportIsEmpty) {
  const ReportPlan plan = parse("model: x\n");
  EXPECT_TRUE(plan.tables.empty() && plan.plots.empty() && plan.paper.empty());
}

TEST(ReportPlan, ReadsReferenceLines) {
  const auto lines_of = [](const std::string& reference, const std::string& more = "kind: curve, x: budget") {
    return "plots: [{name: p, metric: loss, " + more + ", reference: " + reference + "}]\n";
  };
  const auto lines = parse(lines_of("[0.25, {x: 4096, label: trained length}]")).plots[0].references;
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].y, 0.25);
  EXPECT_EQ(lines[0].x, std::nullopt);
  EXPECT_EQ(lines[1].x, 4096);
  EXPECT_EQ(lines[1].label, "trained length");
  EXPECT_EQ(parse(lines_of("7")).plots[0].references.size(), 1u);
  EXPECT_EQ(parse(lines_of("{y: -1}")).plots[0].references[0].y, -1);
  const std::string here = "x.yaml:1:";
  for (const auto& [yaml, reason] : {
           std::pair(lines_of("much"), "expected a number, or a map with x or y"),
           std::pair(lines_of("{label: a}"), "expected one of the keys 'x' and 'y'"),
           std::pair(lines_of("{x: 1, y: 2}"), "expected one of the keys 'x' and 'y'"),
           std::pair(lines_of("{z: 1}"), "unknown key 'z'"),
           std::pair(lines_of("{y: inf}"), "expected a number"),
           std::pair(lines_of("{x: 1}", "kind: bars, x: budget"), "expected y, not x, in bars"),
           std::pair(lines_of("0", "kind: curve, x: budget, y_scale: log10"), "above 0 on a logarithmic axis"),
           std::pair(lines_of("1", "kind: heatmap, x: budget, y: layer"), "belongs to kind curve, bars, scatter"),
       }) {
    const std::string error = error_of(yaml);
    EXPECT_TRUE(starts(error, here)) << error;
    EXPECT_NE(error.find(reason), std::string::npos) << error;
  }
}

TEST(ReportPlan, ReadsATableAndItsPaperBlock) {
  const ReportPlan plan = parse(R"(
tables:
  - name: table2
    title: Loss ratio
    ratio: [nll_sum_policy, nll_sum_full]
    rows: policy
    columns: [budget, interval]
    where: {data: reasoning, budget: [256, 512]}
    digits: 4
    interval: half_width
    better: lower
    unranked: full
    paper: t2
    kendall: yes
paper:
  t2:
    table: Table 2
    page: 7
    values: [{policy: h2o, budget: 512, interval: 128, value: 1.2730}]
)");
  ASSERT_EQ(plan.tables.size(), 1u);
  const TablePlan& table = plan.tables[0];
  EXPECT_EQ(table.measure.ratio, (std::vector<std::string>{"nll_sum_policy", "nll_sum_full"}));
  EXPECT_EQ(table.rows, std::vector<std::string>{"policy"});
  EXPECT_EQ(table.columns, (std::vector<std::string>{"budget", "interval"}));
  EXPECT_EQ(table.where.at("budget"), (ColumnFilter{{"256", "512"}}));
  EXPECT_EQ(table.digits, 4);
  EXPECT_EQ(table.interval, IntervalStyle::kHalfWidth);
  EXPECT_EQ(table.better, Better::kLower);
  EXPECT_TRUE(table.kendall);
  const PaperValue& value = plan.paper.at("t2").values.at(0);
  EXPECT_EQ(value.printed, "1.2730");
  EXPECT_DOUBLE_EQ(value.value, 1.273);
  EXPECT_EQ(value.keys.at("interval"), "128");
}

TEST(ReportPlan, WhereMayNameWhatIsLeftOut) {
  const ReportPlan plan = parse(
      "tables: [{name: t, metric: m, rows: policy, where: {policy: {not: [full, golden]}, budget: {not: 8}}}]\n"
      "plots: [{name: p, kind: bars, metric: m, x: budget, series: policy, where: {policy: {not: full}}}]\n");
  const ColumnFilter most{{"full", "golden"}, true}, not_eight{{"8"}, true}, not_full{{"full"}, true};
  EXPECT_EQ(plan.tables.at(0).where, (Where{{"policy", most}, {"budget", not_eight}}));
  EXPECT_EQ(plan.plots.at(0).where, (Where{{"policy", not_full}}));
  const auto refused = [](const std::string& values) {
    return error_of("tables: [{name: t, metric: m, rows: policy, where: {policy: " + values + "}}]\n");
  };
  EXPECT_EQ(refused("{nto: full}"),
            "x.yaml:1:62: table 't': where: policy: unknown key 'nto', did you mean 'not'? (expected one of: not)");
  EXPECT_EQ(refused("{not: []}"), "x.yaml:1:67: table 't': where: policy: not = a list: expected at least one value");
  EXPECT_EQ(refused("{}"), "x.yaml:1:61: table 't': where: policy: lacks the key 'not'");
  EXPECT_TRUE(starts(refused("{not: {not: full}}"), "x.yaml:1:67: table 't': where: policy: not = "));
}

TEST(ReportPlan, GivesSeveralMetricsAColumnEach) {
  const ReportPlan plan = parse("tables:\n  - {name: t, metric: [recall, cosine], rows: policy}\n");
  EXPECT_EQ(plan.tables[0].columns, std::vector<std::string>{"metric"});
}

TEST(ReportPlan, ReadsAPlot) {
  const ReportPlan plan = parse(
      "plots:\n  - {name: p, kind: curve, metric: recall, x: budget, series: policy, x_scale: log2, y_range: [0, 1], "
      "band: "
      "no}\n");
  ASSERT_EQ(plan.plots.size(), 1u);
  EXPECT_EQ(plan.plots[0].x_scale, Scale::kLog2);
  EXPECT_EQ((*plan.plots[0].y_range)[1], 1.0);
  EXPECT_FALSE(plan.plots[0].band);
}

TEST(ReportPlan, SaysWhereAnUnknownKeyStands) {
  EXPECT_TRUE(starts(
      error_of("tables:\n  - name: t\n    metrik: x\n    metric: recall\n    rows: policy\n"),
      "x.yaml:3:5: table 't': unknown key 'metrik', did you mean 'metric'? (expected one of: name, kind, title, "));
}

TEST(ReportPlan, RefusesMistakesWithTheirPlace) {
  const auto table = [](const std::string& keys) { return "tables:\n  - {name: t, " + keys + "}\n"; };
  EXPECT_EQ(error_of(table("rows: policy")), "x.yaml:2:5: table 't': expected either 'metric' or 'ratio'");
  EXPECT_EQ(error_of(table("metric: m")), "x.yaml:2:5: table 't': lacks the key 'rows'");
  EXPECT_TRUE(starts(
      error_of(table("metric: m, rows: budgte")),
      "x.yaml:2:32: table 't': rows names the column 'budgte', did you mean 'budget'? (expected one of: model, "));
  EXPECT_EQ(error_of(table("metric: m, rows: policy, digits: many")),
            "x.yaml:2:48: table 't': digits = many: expected an integer from 0 to 12");
  EXPECT_EQ(error_of(table("metric: m, rows: policy, better: more")),
            "x.yaml:2:48: table 't': better = more: expected lower or higher");
  EXPECT_EQ(error_of(table("ratio: [a], rows: policy")),
            "x.yaml:2:22: table 't': ratio = a list: expected two metrics, [numerator, denominator]");
  EXPECT_EQ(error_of(table("metric: m, rows: policy, paper: t9")),
            "x.yaml:2:47: table 't': paper = t9: expected a block under the spec's 'paper', which has none");
  EXPECT_EQ(error_of("tables: {name: t}\n"),
            "x.yaml:1:9: tables = a map: expected a list, kvlab describe tables has the keys");
  EXPECT_TRUE(
      starts(error_of("tables:\n  - {name: ../up, metric: m, rows: policy}\n"), "x.yaml:2:12: table: name = ../up: "));
  EXPECT_EQ(error_of("plots:\n  - {name: p, kind: roofline, metric: [i, c]}\n"),
            "x.yaml:2:5: plot 'p': lacks the key 'ceilings'");
  EXPECT_EQ(error_of("plots:\n  - {name: p, kind: roofline, metric: [i, c], ceilings: [b]}\n"),
            "x.yaml:2:57: plot 'p': ceilings = a list: expected two metrics, [bytes per second, work per second]");
  EXPECT_EQ(error_of("plots:\n  - {name: p, kind: roofline, metric: c, ceilings: [b, g]}\n"),
            "x.yaml:2:39: plot 'p': metric = c: expected two metrics, [work per byte, work per second], in a roofline");
  EXPECT_TRUE(starts(error_of("plots:\n  - {name: p, kind: pie, metric: m}\n"),
                     "x.yaml:2:21: plot 'p': kind = pie: expected curve or bars or "));
  EXPECT_TRUE(
      starts(error_of("plots:\n  - {name: p, kind: curve, metric: m, x: budget, y_range: [2, 1]}\n"), "x.yaml:2:59: "));
}

TEST(ReportPlan, ReadsAPairing) {
  const ReportPlan plan =
      parse("tables:\n  - {name: t, metric: m, rows: policy, paired: {column: policy, with: full, relative: yes}}\n");
  const Pairing& paired = plan.tables[0].paired.value();
  EXPECT_EQ(paired.column, "policy");
  EXPECT_EQ(paired.with, "full");
  EXPECT_TRUE(paired.relative);
}

TEST(ReportPlan, RefusesAPairingThatComparesNothing) {
  const auto table = [](const std::string& keys) {
    return "tables:\n  - {name: t, metric: m, rows: policy, " + keys + "}\n";
  };
  EXPECT_EQ(error_of(table("paired: {column: policy}")), "x.yaml:2:48: table 't': paired: lacks the key 'with'");
  EXPECT_EQ(error_of(table("paired: {column: budget, with: 5}")),
            "x.yaml:2:57: table 't': paired: column = budget: expected one of the table's rows and columns (policy)");
  EXPECT_EQ(error_of(table("paired: {column: policy, with: full, to: 1}")),
            "x.yaml:2:77: table 't': paired: unknown key 'to' (expected one of: column, with, relative, "
            "beside)");
  EXPECT_EQ(error_of(table("unranked: full, paired: {column: policy, with: full}")),
            "x.yaml:2:64: table 't': paired = a map: expected no such key beside 'unranked': differences have no rank");
  EXPECT_EQ(error_of(table("paper: p, paired: {column: policy, with: full}") + "paper: {p: {values: []}}\n"),
            "x.yaml:2:58: table 't': paired = a map: expected no such key beside 'paper', which prints no differences");
}

TEST(ReportPlan, ReadsAnInteraction) {
  const ReportPlan plan = parse(
      "tables:\n  - {name: t, metric: m, rows: policy, columns: budget, paired: {column: policy, with: full, "
      "beside: {column: budget, with: 64}}}\n");
  const Level& beside = plan.tables[0].paired.value().beside.value();
  EXPECT_EQ(beside.column, "budget");
  EXPECT_EQ(beside.with, "64");
}

TEST(ReportPlan, RefusesAnInteractionOfNothing) {
  const auto error = [](const std::string& beside) {
    return error_of(
        "tables:\n  - {name: t, metric: m, rows: [policy, budget], paired: {column: policy, with: full, "
        "beside: " +
        beside + "}}\n");
  };
  const std::string owner = "table 't': paired: beside: ";
  EXPECT_EQ(error("{column: policy, with: h2o}"),
            "x.yaml:2:104: " + owner + "column = policy: expected another column than that of 'paired'");
  EXPECT_EQ(
      error("{column: bugdet, with: 64}"),
      "x.yaml:2:104: " + owner +
          "column = bugdet: expected one of the table's rows and columns, did you mean 'budget'? (policy, budget)");
  EXPECT_EQ(
      error("{column: interval, with: 64}"),
      "x.yaml:2:104: " + owner + "column = interval: expected one of the table's rows and columns (policy, budget)");
  EXPECT_EQ(error("{column: budget}"), "x.yaml:2:95: " + owner + "lacks the key 'with'");
  EXPECT_EQ(error("{column: budget, with: 64, colunm: budget}"),
            "x.yaml:2:122: " + owner + "unknown key 'colunm', did you mean 'column'? (expected one of: column, with)");
  EXPECT_EQ(error("{column: budget, with: 64, relative: yes}"),
            "x.yaml:2:122: " + owner + "unknown key 'relative' (expected one of: column, with)");
  EXPECT_EQ(error("budget"), "x.yaml:2:95: " + owner + "expected a map of keys and values, got budget");
}

TEST(ReportPlan, ReadsAComparisonAtEqualSize) {
  const TablePlan table =
      parse("tables:\n  - {name: t, metric: m, rows: policy, columns: interval, at: {cache_size: [0.25, 0.50]}}\n")
          .tables[0];
  EXPECT_EQ(table.at.value().metric, "cache_size");
  EXPECT_EQ(table.at->values, (std::vector<std::string>{"0.25", "0.50"}));
  EXPECT_EQ(table.columns, (std::vector<std::string>{"interval", "cache_size"}));
  EXPECT_EQ(parse("tables: [{name: t, metric: m, rows: policy, at: {recall: 1}}]").tables[0].at->values,
            std::vector<std::string>{"1"});
}

TEST(ReportPlan, RefusesAComparisonAtEqualSizeThatIsNone) {
  const auto table = [](const std::string& keys) {
    return "tables:\n  - {name: t, metric: m, rows: policy, " + keys + "}\n";
  };
  EXPECT_EQ(
      error_of(table("at: {cache_siz: 0.5}")),
      "x.yaml:2:45: table 't': at names 'cache_siz', did you mean 'cache_size'? (expected a metric with one number "
      "a sample: cache_size, loss_ratio, recall)");
  EXPECT_TRUE(starts(error_of(table("at: {budget: 64}")), "x.yaml:2:45: table 't': at names 'budget' (expected "));
  EXPECT_EQ(error_of(table("at: 0.5")),
            "x.yaml:2:44: table 't': at = 0.5: expected a map of one metric: {metric: [values]}");
  EXPECT_EQ(error_of(table("at: {cache_size: [1], recall: [1]}")),
            "x.yaml:2:44: table 't': at = a map: expected a map of one metric: {metric: [values]}");
  EXPECT_EQ(error_of(table("at: {cache_size: [0.5, half]}")), "x.yaml:2:63: table 't': at = half: expected a number");
  EXPECT_EQ(error_of(table("at: {cache_size: [0.5, 0.50]}")),
            "x.yaml:2:63: table 't': at = 0.50: the same value appears twice");
  EXPECT_EQ(error_of(table("at: {cache_size: []}")), "x.yaml:2:44: table 't': at = a map: expected at least one value");
  EXPECT_EQ(error_of(table("kind: listing, columns: value, at: {recall: 1}")),
            "x.yaml:2:75: table 't': at = a map: expected no such key in a listing");
  EXPECT_EQ(error_of(table("paper: p, at: {recall: 1}") + "paper: {p: {values: []}}\n"),
            "x.yaml:2:54: table 't': at = a map: expected no such key beside 'paper', which has no numbers at equal "
            "size");
}

TEST(ReportPlan, ACurveAndAScatterPlotMayHaveAMetricAlongX) {
  const auto plot = [](const std::string& keys) { return "plots:\n  - {name: p, metric: loss, " + keys + "}\n"; };
  EXPECT_TRUE(parse(plot("kind: curve, x: cache_size")).plots[0].measured_x);
  EXPECT_FALSE(parse(plot("kind: curve, x: budget")).plots[0].measured_x);
  EXPECT_TRUE(parse(plot("kind: scatter, x: recall")).plots[0].measured_x);
  EXPECT_EQ(error_of(plot("kind: curve, x: cache_siz")),
            "x.yaml:2:45: plot 'p': x names 'cache_siz', did you mean 'cache_size'? (expected a column: model, data, "
            "policy, device, sample, seed, layer, head, x, metric, budget, interval; or a metric with one number a "
            "sample: cache_size, loss_ratio, recall)");
  EXPECT_TRUE(starts(error_of(plot("kind: curve, x: bugdet")),
                     "x.yaml:2:45: plot 'p': x names 'bugdet', did you mean 'budget'? (expected a column: "));
  EXPECT_EQ(error_of(plot("kind: bars, x: recall")),
            "x.yaml:2:44: plot 'p': x = recall: expected a column in kind bars");
  EXPECT_EQ(error_of(plot("kind: scatter, x: budget")),
            "x.yaml:2:47: plot 'p': x = budget: expected a metric with one number a sample in a scatter plot");
  EXPECT_EQ(error_of(plot("kind: scatter")), "x.yaml:2:5: plot 'p': lacks the key 'x'");
}

TEST(ReportPlan, SaysWhichKindsHaveAKey) {
  EXPECT_EQ(
      error_of("plots:\n  - {name: p, kind: curve, metric: m, x: budget, z_scale: log2}\n"),
      "x.yaml:2:59: plot 'p': z_scale = log2: belongs to kind heatmap, image, expected no such key in kind curve");
  EXPECT_EQ(error_of("plots:\n  - {name: p, kind: curve, metric: m}\n"), "x.yaml:2:5: plot 'p': lacks the key 'x'");
  EXPECT_TRUE(starts(error_of("plots:\n  - {name: p, kind: curve, metric: m, seris: policy, x: budget}\n"),
                     "x.yaml:2:39: plot 'p': unknown key 'seris', did you mean 'series'? ("));
}

TEST(ReportPlan, NamesThePlaceOfWhatWasOverriddenAndOfWhatWasNot) {
  const std::string spec =
      "tables:\n  - {name: t, metric: m, rows: policy, digits: x}\n  - {name: u, metric: m, rows: policy}\n";
  EXPECT_EQ(error_of(spec, {"tables.0.digits=13"}),
            "--set tables.0.digits=13: table 't': digits = 13: expected an integer from 0 to 12");
  EXPECT_EQ(error_of(spec, {"tables.u.digits=3"}),
            "x.yaml:2:48: table 't': digits = x: expected an integer from 0 to 12");
  EXPECT_TRUE(starts(error_of(spec, {"tables.t.digits=2", "tables.u.digts=3"}),
                     "--set tables.u.digts=3: table 'u': unknown key 'digts', did you mean 'digits'? ("));
  EXPECT_TRUE(starts(error_of(spec, {"tables.t.digits=2", "tables.1.where.bugdet=3"}),
                     "--set tables.1.where.bugdet=3: table 'u': where names the column 'bugdet', did you mean "));
  EXPECT_EQ(error_of(spec, {"tables.t.digits=2", "paper.p.page=3"}),
            "--set paper.p.page=3: paper block 'p': lacks the key 'values'");
}

// Keys that a map accepts are those that its error names, and those that are printed.
TEST(ReportPlan, EveryKeyThatIsReadIsPrinted) {
  const auto accepted = [](const std::string& error) {
    const size_t begin = error.find("(expected one of: ");
    return begin == error.npos ? error : error.substr(begin);
  };
  const auto printed = [](const KeySection& section) {
    std::string keys;
    for (const DeclaredParam& key : section.keys) {
      keys += (keys.empty() ? "" : ", ") + key.key;
      EXPECT_FALSE(key.help.empty() || key.type.empty() || key.fallback.empty()) << section.title << ": " << key.key;
    }
    return "(expected one of: " + keys + ")";
  };
  EXPECT_EQ(accepted(error_of("tables: [{name: t, metric: m, rows: policy, zzz: 1}]")), printed(table_keys()[0]));
  EXPECT_EQ(
      accepted(error_of("tables: [{name: t, metric: m, rows: policy, paired: {column: policy, with: a, zzz: 1}}]")),
      printed(table_keys()[1]));
  EXPECT_EQ(accepted(error_of("tables: [{name: t, metric: m, rows: [policy, budget], paired: {column: policy, with: a, "
                              "beside: {column: budget, with: 1, zzz: 1}}}]")),
            printed(table_keys()[2]));
  EXPECT_EQ(accepted(error_of("plots: [{name: t, kind: curve, x: budget, metric: m, zzz: 1}]")),
            printed(plot_keys()[0]));
  EXPECT_EQ(accepted(error_of("paper: {p: {values: [], zzz: 1}}")), printed(paper_keys()[0]));
}

TEST(ReportPlan, RefusesTwoOfOneName) {
  EXPECT_TRUE(
      starts(error_of("tables:\n  - {name: t, metric: m, rows: policy}\n  - {name: t, metric: m, rows: policy}\n"),
             "x.yaml:3:12: table: name = t: expected a name that no other"));
}

TEST(ReportPlan, ReadsALineOfThePapersTable) {
  const ReportPlan plan = parse("paper:\n  p: {values: [{policy: h2o, budget: [512, 1024], value: [1.10, 1.05]}]}\n");
  const std::vector<PaperValue>& values = plan.paper.at("p").values;
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(values[0].printed, "1.10");
  EXPECT_EQ(values[1].keys, (std::map<std::string, std::string>{{"budget", "1024"}, {"policy", "h2o"}}));
  EXPECT_EQ(error_of("paper:\n  p: {values: [{policy: h2o, budget: [512], value: [1, 2]}]}\n"),
            "x.yaml:2:38: paper block 'p': budget = a list: expected as many values as 'value' has, 2");
  EXPECT_EQ(error_of("paper:\n  p: {values: [{policy: h2o, budget: 512, value: [1, 2]}]}\n"),
            "x.yaml:2:50: paper block 'p': value = a list: expected one key with a list beside a list of values");
  EXPECT_EQ(error_of("paper:\n  p: {values: [{policy: h2o, budget: [512, 1024], value: 1}]}\n"),
            "x.yaml:2:38: paper block 'p': budget = a list: expected a single value");
}

TEST(ReportPlan, RefusesPaperValuesThatFitNoCell) {
  const std::string tables = "tables:\n  - {name: t, metric: m, rows: policy, columns: budget, paper: p}\n";
  EXPECT_EQ(error_of(tables + "paper:\n  p: {values: [{policy: h2o, value: 1}]}\n"),
            "x.yaml:2:5: table 't': paper block 'p' has the value 1 without the key 'budget'");
  EXPECT_EQ(error_of(tables + "paper:\n  p: {values: [{policy: h2o, budget: 1, data: x, value: 1}]}\n"),
            "x.yaml:2:5: table 't': paper block 'p' has values by 'data', which is no row, column or where key");
  EXPECT_EQ(error_of(tables + "paper:\n  p: {values: [{policy: h2o, budget: 1, value: about 2}]}\n"),
            "x.yaml:4:48: paper block 'p': value = about 2: expected a number as the paper prints it");
}

}  // namespace
}  // namespace kv
