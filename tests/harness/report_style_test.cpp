#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "harness/report/pdf.h"
#include "harness/report/plot.h"
#include "harness/report/png.h"
#include "harness/report/style.h"
#include "harness/report/svg.h"

namespace kv {
namespace {

bool same(const Style& a, const Style& b) {
  return a.color == b.color && a.mark == b.mark && a.hollow == b.hollow && a.dashes == b.dashes;
}

// A lightness of 0 to 255, as a grey printer or an eye without colours weighs one.
double grey(const Color& color) { return 0.299 * color.red + 0.587 * color.green + 0.114 * color.blue; }

TEST(Style, OfAPolicyIsForEver) {
  // These lines never change: plots of other runs are beside them.
  EXPECT_EQ(hex(style_of_name("h2o").color), "#0072b2");
  EXPECT_EQ(style_of_name("h2o").mark, Mark::kCircle);
  EXPECT_EQ(hex(style_of_name("snapkv").color), "#d55e00");
  EXPECT_EQ(style_of_name("snapkv").mark, Mark::kSquare);
  EXPECT_EQ(hex(style_of_name("full").color), "#000000");
  // A name that nobody has heard of gets its colour from a hash that is the same everywhere.
  const Style unknown = style_of_name("my-policy");
  EXPECT_TRUE(same(unknown, style_of_name("my-policy")));
  EXPECT_TRUE(unknown.hollow);
}

TEST(Style, DoesNotDependOnTheSeriesBesideIt) {
  SeriesStyles alone({"policy"}), among({"data", "policy"});
  const Style first = alone.of({"r-kv"});
  among.of({"prose", "full"});
  among.of({"prose", "tova"});
  EXPECT_TRUE(same(among.of({"prose", "r-kv"}), first));
  EXPECT_FALSE(same(among.of({"code", "r-kv"}), first));
  EXPECT_EQ(among.of({"code", "r-kv"}).color, first.color);
}

// Without any colour two policies differ in their marker, or in their lightness and dashes.
TEST(Style, TellsEveryTwoPoliciesApartInGrey) {
  for (const char* kind : {"scorer", "allocation"}) {
    const std::vector<std::string> names =
        std::string(kind) == "scorer" ? std::vector<std::string>{"full",
                                                                 "golden",
                                                                 "h2o",
                                                                 "snapkv",
                                                                 "r-kv",
                                                                 "tova",
                                                                 "keydiff",
                                                                 "observed-attention",
                                                                 "expected-attention",
                                                                 "streaming",
                                                                 "random"}
                                      : std::vector<std::string>{"uniform", "pyramid", "ada", "lu-kv", "optimal"};
    for (std::size_t i = 0; i < names.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const Style a = style_of_name(names[i]), b = style_of_name(names[j]);
        const bool lightness = std::abs(grey(a.color) - grey(b.color)) >= 25;
        EXPECT_TRUE(a.mark != b.mark || (lightness && a.color != b.color)) << names[i] << " and " << names[j];
      }
    }
  }
}

TEST(Style, OfNumberedSeriesRepeatsLate) {
  SeriesStyles styles({"data"});
  std::vector<Style> seen;
  for (int i = 0; i < 36; ++i) {
    const Style style = styles.of({std::to_string(i)});
    for (const Style& other : seen) EXPECT_FALSE(same(style, other)) << i;
    seen.push_back(style);
  }
}

RowTable ratios(const std::string& policy) {
  RowTable rows{.axes = {"budget"}, .rows = {}};
  for (const char* budget : {"256", "512"}) {
    Row row{.policy = policy, .sample = 0, .metric = "loss_ratio", .value = 1.5};
    row.axes = {budget};
    rows.rows.push_back(row);
  }
  return rows;
}

TEST(Plot, OfARatioHasALineAtOneAndThePapersNumbers) {
  PlotPlan plan;
  plan.kind = PlotKind::kBars;
  plan.name = "p";
  plan.measure.metrics = {"loss_ratio"};
  plan.x = "budget";
  plan.series = {"policy"};
  TablePlan table;
  table.measure = plan.measure;
  table.paper = "t";
  table.rows = {"policy"};
  table.columns = {"budget"};
  const auto value = [](const std::string& budget, double number) {
    return PaperValue{{{"policy", "h2o"}, {"budget", budget}}, shortest(number), number};
  };
  const ReportPlan report{.tables = {table}, .plots = {plan}, .paper = {{"t", {.values = {value("256.0", 1.25)}}}}};
  const std::vector<PaperValue> paper = paper_values(report, plan);
  ASSERT_EQ(paper.size(), 1u);
  const Drawing with = draw(plan, ratios("h2o"), paper), without = draw(plan, ratios("h2o"));
  EXPECT_EQ(with.notes.back(), "Ringed and hollow: the paper's number.");
  EXPECT_EQ(without.notes.back(), "Dashed line: 1, the full cache.");
  EXPECT_EQ(with.picture.items.size(), without.picture.items.size() + 3)
      << "a ring, and one with a word that explains it";
  plan.measure.metrics = {"loss"};
  EXPECT_TRUE(paper_values(report, plan).empty());
}

TEST(Png, IsWhatADecoderExpects) {
  Raster raster{.columns = 3, .cells = {0, 1, Raster::kBlank, 1, 1, 1}, .palette = {{255, 0, 0}, {0, 0, 255}}};
  const std::string png = to_png(raster);
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(png.substr(12, 4), "IHDR");
  EXPECT_EQ(png.substr(png.size() - 8, 4), "IEND");
  EXPECT_EQ(base64("Man"), "TWFu");
  EXPECT_EQ(base64("Ma"), "TWE=");
  EXPECT_EQ(base64("M"), "TQ==");
}

TEST(Pdf, IsOnePageWithItsObjectsWhereTheTableSays) {
  Picture picture{.width = 100, .height = 50};
  picture.add(Text{.x = 10, .y = 10, .text = "a (b) \xc2\xb5 \xcf\x84"});
  picture.add(Disc{.x = 5, .y = 5, .radius = 2, .fill = kInk});
  const std::string pdf = to_pdf(picture, "title");
  EXPECT_TRUE(pdf.starts_with("%PDF-1.4\n"));
  EXPECT_NE(pdf.find("(a \\(b\\) \xb5 tau) Tj"), std::string::npos);
  EXPECT_NE(pdf.find("/MediaBox [0 0 75.00 37.50]"), std::string::npos);
  std::size_t at = pdf.find("0000000000 65535 f \n") + 20;
  for (int i = 1; i <= 7; ++i, at += 20) {
    EXPECT_EQ(pdf.compare(std::stoul(pdf.substr(at, 10)), 7, std::to_string(i) + " 0 obj"), 0) << i;
  }
  EXPECT_EQ(pdf, to_pdf(picture, "title"));
}

}  // namespace
}  // namespace kv
