#include "harness/report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "harness/files.h"
#include "harness/report/plot.h"
#include "harness/report/svg.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "kernels/error.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

// Three policies, two budgets, five samples, two layers of two heads, a survival curve and an attention map.
RowTable make_rows(int samples = 5) {
  RowTable table{.axes = {"budget"}, .rows = {}};
  const std::vector<std::string> policies = {"full", "h2o", "r-kv"};
  for (std::size_t p = 0; p < policies.size(); ++p) {
    for (const int budget : {256, 512}) {
      for (int sample = 0; sample < samples; ++sample) {
        Row row{
            .experiment = "e", .model = "m", .data = "prose", .policy = policies[p], .device = "cpu", .sample = sample};
        row.seed = 1;
        row.axes = {std::to_string(budget)};
        row.metric = "loss_ratio";
        row.value = 1 + static_cast<double>(p) * 256 / budget + 0.01 * sample;
        table.rows.push_back(row);
        row.metric = "recall";
        for (int layer = 0; layer < 2; ++layer) {
          for (int head = 0; head < 2; ++head) {
            row.layer = layer;
            row.head = head;
            row.value = 0.25 * (layer + head) + 0.1;
            table.rows.push_back(row);
          }
        }
        row.layer = row.head = std::nullopt;
        row.metric = "survival";
        for (int x = 0; x < 300; ++x) {
          row.x = x;
          row.value = std::exp(-x / 100.0);
          table.rows.push_back(row);
        }
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    Row row{.experiment = "e", .model = "m", .data = "prose", .policy = "full", .layer = 0, .head = 1, .x = i};
    row.metric = "attention_map";
    for (int j = 0; j <= i; ++j) row.text += (j == 0 ? "" : " ") + shortest(1.0 / (1 + i));
    row.axes = {""};
    table.rows.push_back(row);
  }
  Row skipped{
      .experiment = "e", .model = "m", .data = "code", .policy = "h2o", .skipped = "1800 tokens, expected 2048"};
  skipped.axes = {"256"};
  table.rows.push_back(skipped);
  return table;
}

PlotPlan make_plot(PlotKind kind, const std::string& name, std::vector<std::string> metrics) {
  PlotPlan plot;
  plot.kind = kind;
  plot.name = name;
  plot.title = "A <plot> of " + name;
  plot.measure.metrics = std::move(metrics);
  plot.where = {{"data", {{"prose"}}}};
  return plot;
}

ReportPlan make_plan() {
  ReportPlan plan;
  TablePlan table;
  table.name = "losses";
  table.title = "Losses";
  table.measure.metrics = {"loss_ratio"};
  table.rows = {"policy"};
  table.columns = {"budget"};
  plan.tables = {table};
  PlotPlan curve = make_plot(PlotKind::kCurve, "curve", {"loss_ratio"});
  curve.x = "budget";
  curve.x_scale = Scale::kLog2;
  curve.series = {"policy"};
  PlotPlan bars = make_plot(PlotKind::kBars, "bars", {"loss_ratio"});
  bars.x = "policy";
  bars.series = {"budget"};
  PlotPlan scatter = make_plot(PlotKind::kScatter, "scatter", {"loss_ratio"});
  scatter.x = "recall";
  scatter.measured_x = true;
  scatter.series = {"policy"};
  PlotPlan heat = make_plot(PlotKind::kHeatmap, "heat", {"recall"});
  heat.x = "head";
  heat.y = "layer";
  heat.facet = {"policy"};
  PlotPlan image = make_plot(PlotKind::kImage, "image", {"attention_map"});
  image.x = "x";
  image.z_scale = Scale::kLog10;
  plan.plots = {curve, bars, scatter, heat, image};
  return plan;
}

class Report : public testing::Test {
 protected:
  void SetUp() override {
    const RowTable rows = make_rows();
    write_rows_atomically(dir_ / "rows.csv", rows.axes, rows.rows);
  }

  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(dir_))
      out[entry.path().filename()] = read_file(entry.path());
    return out;
  }

  const ReportText text_{.title = "quick & start",
                         .question = "Who loses?",
                         .spec = "model: m\nnote: a < b\n",
                         .manifest = R"({"commit": "abc", "machine": {"cores": 2}})"};
  test::TempFolder folder_;
  const std::filesystem::path& dir_ = folder_.path();
};

TEST_F(Report, IsAFunctionOfRowsAndPlan) {
  write_report(dir_ / "rows.csv", dir_, make_plan(), text_);
  const auto first = files();
  write_report(dir_ / "rows.csv", dir_, make_plan(), text_);
  EXPECT_EQ(files(), first);
  for (const char* name :
       {"table.md", "table.tex", "index.html", "curve.svg", "bars.pdf", "scatter.pdf", "heat.svg", "image.svg"}) {
    EXPECT_TRUE(first.contains(name)) << name;
  }
  EXPECT_EQ(first.size(), 4 + 5 * 2u);
}

TEST_F(Report, ReturnsTheMarkdownOfItsTables) {
  const std::string markdown = write_report(dir_ / "rows.csv", dir_, make_plan(), text_);
  EXPECT_NE(markdown.find("| h2o | 2.020 [2.008, 2.032] | 1.520 [1.508, 1.532] |"), std::string::npos) << markdown;
  EXPECT_EQ(markdown, read_file(dir_ / "table.md"));
}

TEST_F(Report, PageNeedsNothingBesideItself) {
  write_report(dir_ / "rows.csv", dir_, make_plan(), text_);
  const std::string page = read_file(dir_ / "index.html");
  for (const char* part : {"<title>quick &amp; start</title>", "Who loses?", "<dt>machine.cores</dt><dd>2</dd>",
                           "note: a &lt; b", "1800 tokens, expected 2048",
                           "role=\"img\" aria-label=\"A &lt;plot&gt; of curve\"", "<th scope=\"row\">h2o</th>"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  for (const char* remote : {"<script", "src=\"http", "<link", "@import", "url(http"}) {
    EXPECT_EQ(page.find(remote), std::string::npos) << remote;
  }
}

TEST_F(Report, GivesThePlotsOfAPageIdsOfTheirOwn) {
  write_report(dir_ / "rows.csv", dir_, make_plan(), text_);
  const std::string page = read_file(dir_ / "index.html");
  std::map<std::string, int> ids;
  for (const std::string quote : {"'", "\""}) {
    const std::string mark = " id=" + quote;
    for (std::size_t at = page.find(mark); at != page.npos; at = page.find(mark, at + 1)) {
      const std::size_t start = at + mark.size();
      ++ids[page.substr(start, page.find(quote, start) - start)];
    }
  }
  int clips = 0;
  for (const auto& [id, count] : ids) {
    EXPECT_EQ(count, 1) << id;
    clips += id.ends_with("-clip0") ? 1 : 0;
  }
  EXPECT_GT(clips, 0);
  // So have their style sheets.
  std::set<std::string> rules;
  for (std::size_t at = page.find("<style>.p"); at != page.npos; at = page.find("<style>.p", at + 1)) {
    EXPECT_TRUE(rules.insert(page.substr(at, page.find('{', at) - at)).second);
  }
  EXPECT_GT(rules.size(), 1U);
}

TEST_F(Report, RefusesAManifestThatIsNoJson) {
  ReportText text = text_;
  text.manifest = "{";
  EXPECT_THROW(write_report(dir_ / "rows.csv", dir_, {}, text), UserError);
}

TEST_F(Report, OfAPlotWithoutRowsSaysSoAndDrawsNothing) {
  ReportPlan plan;
  plan.plots = {make_plot(PlotKind::kCurve, "none", {"no_such"})};
  plan.plots[0].x = "budget";
  write_report(dir_ / "rows.csv", dir_, plan, text_);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "none.svg"));
  EXPECT_NE(read_file(dir_ / "index.html").find("No rows with a value for metric no_such."), std::string::npos);
}

TEST(Plot, AveragesALongCurveInBins) {
  PlotPlan plan = make_plot(PlotKind::kCurve, "survival", {"survival"});
  plan.x = "x";
  plan.series = {"policy"};
  const Drawing drawing = draw(plan, make_rows());
  ASSERT_FALSE(drawing.notes.empty());
  EXPECT_EQ(drawing.notes.back(), "300 points averaged in 100 bins.");
}

TEST(Plot, SaysWhatItsBandIs) {
  PlotPlan plan = make_plot(PlotKind::kCurve, "c", {"loss_ratio"});
  plan.x = "budget";
  plan.series = {"policy"};
  EXPECT_EQ(draw(plan, make_rows(4)).notes.at(0), "n = 4 samples; no interval below 5 samples.");
  EXPECT_EQ(draw(plan, make_rows(5)).notes.at(0), "n = 5 samples; band: 95 % bootstrap interval over samples.");
}

TEST(Plot, RefusesTwoMatricesInOnePanel) {
  RowTable rows = make_rows();
  Row again =
      *std::find_if(rows.rows.begin(), rows.rows.end(), [](const Row& r) { return r.metric == "attention_map"; });
  again.sample = 1;
  rows.rows.push_back(again);
  EXPECT_THROW(draw(make_plot(PlotKind::kImage, "i", {"attention_map"}), rows), UserError);
}

TEST(Plot, RefusesAMatrixThatHoldsNoNumber) {
  RowTable rows = make_rows();
  for (Row& row : rows.rows) {
    if (row.metric == "attention_map") row.text = "1 two";
  }
  EXPECT_THROW(draw(make_plot(PlotKind::kImage, "i", {"attention_map"}), rows), UserError);
}

TEST(Plot, KeepsABigMatrixSmall) {
  RowTable rows{.axes = {}, .rows = {}};
  for (int i = 0; i < 600; ++i) {
    Row row{.layer = 0, .head = 0, .x = i, .metric = "attention_map"};
    // Pixels without structure are the worst case of the PNG inside the SVG.
    for (int j = 0; j < 600; ++j) row.text += shortest(((i * 7919 + j * 104729) % 9973) / 9973.0) + " ";
    rows.rows.push_back(row);
  }
  PlotPlan plan = make_plot(PlotKind::kImage, "big", {"attention_map"});
  plan.where.clear();
  EXPECT_LT(to_svg(draw(plan, rows).picture, "big").size(), 150'000u);
}

}  // namespace
}  // namespace kv
