#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/report/plot.h"
#include "harness/report/svg.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "harness/spec/spec_reader.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

struct Label {
  std::string text;
  Box box;
};

// The number that stands there, which `then` has to follow; `at` moves behind that.
double number_at(const std::string& text, std::size_t& at, const std::string& then) {
  std::size_t read = 0;
  const double number = std::stod(text.substr(at), &read);
  EXPECT_EQ(text.substr(at + read, then.size()), then) << text;
  at += read + then.size();
  return number;
}

// By hand: std::regex takes seconds for the pictures of one case, and tens of them under sanitizers.
double attribute(const std::string& tag, const std::string& name, double otherwise) {
  const std::string begin = " " + name + "=\"";
  std::size_t at = tag.find(begin);
  return at == tag.npos ? otherwise : number_at(tag, at += begin.size(), "\"");
}

// The boxes of an SVG's texts as a browser would lay them, from the file alone.
std::vector<Label> labels_of(const std::string& svg) {
  std::vector<Label> out;
  const std::string begin = "<text", turn = "translate(";
  for (std::size_t at = svg.find(begin); at != svg.npos; at = svg.find(begin, at + 1)) {
    const std::size_t inner = svg.find('>', at) + 1;
    const std::string tag = svg.substr(at, inner - at);
    Text text{.text = svg.substr(inner, svg.find('<', inner) - inner), .size = attribute(tag, "font-size", kTextSize)};
    text.bold = tag.find("font-weight") != tag.npos;
    if (tag.find("\"middle\"") != tag.npos) text.anchor = Anchor::kMiddle;
    if (tag.find("\"end\"") != tag.npos) text.anchor = Anchor::kEnd;
    if (const std::size_t turned = tag.find(turn); turned != tag.npos) {
      std::size_t number = turned + turn.size();
      text.x = number_at(tag, number, " ");
      text.y = number_at(tag, number, ")rotate(");
      text.degrees = -number_at(tag, number, ")");
    } else {
      text.x = attribute(tag, "x", 0);
      text.y = attribute(tag, "y", 0) - 0.35 * text.size;
    }
    out.push_back({text.text, text_box(text)});
  }
  return out;
}

// Every text inside the view box; no two texts on each other but slanted ones, whose box is mostly empty.
void expect_readable(const Drawing& drawing, const std::string& name) {
  ASSERT_EQ(drawing.empty, "") << name;
  const std::string svg = to_svg(drawing.picture, name);
  const Box view{0, 0, attribute(svg, "width", 0), attribute(svg, "height", 0)};
  const std::vector<Label> labels = labels_of(svg);
  ASSERT_GT(labels.size(), 2u) << name;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto& [text, box] = labels[i];
    EXPECT_TRUE(view.holds(box)) << name << ": '" << text << "' at " << box.left << " to " << box.right << ", "
                                 << box.top << " to " << box.bottom << " of " << view.right << " x " << view.bottom;
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(box.meets(labels[j].box)) << name << ": '" << text << "' is on '" << labels[j].text << "'";
    }
  }
}

const std::string kLong = "a-policy-whose-name-is-far-longer-than-anybody-would-like";

// Values by policy, data, budget, layer and head.
RowTable make_rows(int policies) {
  RowTable table{.axes = {"budget"}, .rows = {}};
  for (int p = 0; p < policies; ++p) {
    for (const char* data : {"prose", "code and other things that have long names"}) {
      for (const int budget : {128, 256, 1024, 4096}) {
        for (int layer = 0; layer < 6; ++layer) {
          Row row{.data = data, .policy = p == 0 ? kLong : "policy-" + std::to_string(p), .sample = 0, .layer = layer};
          row.head = layer % 3;
          row.axes = {std::to_string(budget)};
          row.metric = "speed";
          row.value = (p + 1) * 12345.0 * budget / (layer + 1);
          row.unit = "tokens/s";
          table.rows.push_back(row);
          row.metric = "recall";
          row.value = 1.0 / (p + layer + 1);
          row.unit = "";
          table.rows.push_back(row);
        }
      }
    }
  }
  return table;
}

PlotPlan make_plan(PlotKind kind, std::vector<std::string> metrics) {
  PlotPlan plan;
  plan.kind = kind;
  plan.name = "p";
  plan.measure.metrics = std::move(metrics);
  return plan;
}

TEST(PlotLayout, OfCurvesKeepsTextsApart) {
  for (const int policies : {1, 3, 14, 20}) {
    PlotPlan plan = make_plan(PlotKind::kCurve, {"speed"});
    plan.x = "budget";
    plan.series = {"policy"};
    expect_readable(draw(plan, make_rows(policies)), "one panel");
    plan.references = {
        {.x = 1024, .label = "here"}, {.x = 1100, .label = "and almost here"}, {.y = 1e6, .label = kLong}};
    plan.facet = {"data"};
    expect_readable(draw(plan, make_rows(policies)), "a facet");
    plan.facet = {"data", "layer"};
    plan.x_scale = Scale::kLog2;
    plan.y_scale = Scale::kLog10;
    expect_readable(draw(plan, make_rows(policies)), "a grid");
  }
  PlotPlan plan = make_plan(PlotKind::kCurve, {"recall"});
  plan.x = "data";
  plan.series = {"layer"};
  plan.y_label =
      "a label that says at great length what stands on the axis, and then some more of it, until it is long";
  expect_readable(draw(plan, make_rows(2)), "categories");
}

// Lines that leave a range have their names where they leave it.
TEST(PlotLayout, OfACutRangeDrawsNothingBesideIt) {
  PlotPlan plan = make_plan(PlotKind::kCurve, {"recall"});
  plan.x = "budget";
  plan.series = {"policy"};
  plan.x_range = {100, 700};  // of 128 to 4096
  const Drawing drawing = draw(plan, make_rows(3));
  double names = 1e9;  // where they begin
  for (const PictureItem& item : drawing.picture.items) {
    if (const auto* text = std::get_if<Text>(&item); text && text->text.starts_with("policy-")) {
      names = std::min(names, text_box(*text).left);
    }
  }
  for (const PictureItem& item : drawing.picture.items) {
    const auto* shape = std::get_if<Shape>(&item);
    if (!shape || shape->clip) continue;
    for (const auto& point : shape->points) EXPECT_LT(point[0], names);
  }
}

TEST(PlotLayout, OfBarsKeepsTextsApart) {
  for (const int policies : {1, 2, 11, 40}) {
    PlotPlan plan = make_plan(PlotKind::kBars, {"speed"});
    plan.x = "data";
    plan.series = {"policy"};
    expect_readable(draw(plan, make_rows(policies)), "bars");
    plan.facet = {"budget"};
    expect_readable(draw(plan, make_rows(policies)), "a facet");
    plan.facet = {"budget", "layer"};
    expect_readable(draw(plan, make_rows(policies)), "two facets");
    plan.x = "policy";
    plan.series = {"data"};
    plan.facet = {};
    expect_readable(draw(plan, make_rows(policies)), "rows of x");
  }
}

TEST(PlotLayout, OfScatterPlotsKeepsTextsApart) {
  PlotPlan plan = make_plan(PlotKind::kScatter, {"speed"});
  plan.x = "recall";
  plan.measured_x = true;
  plan.series = {"policy"};
  for (const int policies : {1, 12}) {
    expect_readable(draw(plan, make_rows(policies)), "one");
    plan.facet = {"budget", "data"};
    expect_readable(draw(plan, make_rows(policies)), "grid");
    plan.facet = {};
  }
}

TEST(PlotLayout, OfMatricesKeepsTextsApart) {
  PlotPlan plan = make_plan(PlotKind::kHeatmap, {"speed"});
  plan.x = "data";
  plan.y = "policy";
  plan.z_scale = Scale::kLog10;
  expect_readable(draw(plan, make_rows(3)), "one");
  plan.facet = {"budget"};
  expect_readable(draw(plan, make_rows(30)), "many rows");
  plan.y = "budget";
  plan.x = "layer";
  plan.facet = {"data", "policy"};
  expect_readable(draw(plan, make_rows(4)), "grid");
  RowTable rows{.axes = {}, .rows = {}};
  for (int i = 0; i < 80; ++i) {
    Row row{.layer = 3, .head = 1, .x = 1000 * i, .metric = "attention_map"};
    for (int j = 0; j < 80; ++j) row.text += shortest((i * 80 + j) / 6400.0) + " ";
    rows.rows.push_back(row);
  }
  expect_readable(draw(make_plan(PlotKind::kImage, {"attention_map"}), rows), "image");
}

TEST(PlotLayout, OfARooflineKeepsTextsApart) {
  RowTable table{.axes = {"kernel", "shape"}, .rows = {}};
  const auto add = [&](const std::string& kernel, int shape, const std::string& metric, double value) {
    table.rows.push_back({.metric = metric, .value = value, .axes = {kernel, "shape " + std::to_string(shape)}});
  };
  add("", 0, "copy_peak", 4);
  add("", 0, "gemm_peak", 800);
  for (int i = 0; i < 40; ++i) {
    add("kernel" + std::to_string(i % 7), i, "intensity", 1 + i * i);
    add("kernel" + std::to_string(i % 7), i, "compute", std::min(4.0 * (1 + i * i), 800.0) * 0.7);
  }
  PlotPlan plan = make_plan(PlotKind::kRoofline, {"intensity", "compute"});
  plan.ceilings = {"copy_peak", "gemm_peak"};
  plan.series = {"kernel"};
  plan.label = {"shape"};
  const Drawing drawing = draw(plan, table);
  const Box view{0, 0, drawing.picture.width, drawing.picture.height};
  std::vector<Box> upright;
  for (const PictureItem& item : drawing.picture.items) {
    const Text* text = std::get_if<Text>(&item);
    if (text == nullptr) continue;
    EXPECT_TRUE(view.holds(text_box(*text))) << text->text;
    if (text->degrees != 0) continue;  // the slope's, whose box is mostly empty
    for (const Box& other : upright) EXPECT_FALSE(text_box(*text).meets(other)) << text->text;
    upright.push_back(text_box(*text));
  }
  EXPECT_GT(upright.size(), 30u);
}

// What is committed, as it would be drawn today.
TEST(PlotLayoutSlow, OfCommittedResultsKeepsTextsApart) {
  for (const char* name : {"quickstart", "001-table1-cuda", "001-table2-cuda", "001-table7-cuda", "001-figure1-cuda",
                           "003-figure2-cuda"}) {
    const std::string folder = ref::source_path(std::string("results/") + name);
    const Spec spec = load_spec(folder + "/spec.yaml");
    const RowTable rows = read_rows(folder + "/rows.csv");
    for (const PlotPlan& plot : spec.report.plots) {
      expect_readable(draw(plot, rows, paper_values(spec.report, plot)), std::string(name) + "/" + plot.name);
    }
  }
}

}  // namespace
}  // namespace kv
