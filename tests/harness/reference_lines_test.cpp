#include "harness/report/reference_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/report/plot.h"
#include "harness/rows.h"

namespace kv {
namespace {

using testing::_;
using testing::Contains;
using testing::DoubleNear;
using testing::ElementsAre;

// One series: 10 at a budget of 256, 30 at 1024.
RowTable two_points() {
  RowTable table{.axes = {"budget"}, .rows = {}};
  for (const auto& [budget, value] : {std::pair("256", 10.0), std::pair("1024", 30.0)}) {
    table.rows.push_back({.policy = "h2o", .metric = "speed", .value = value, .axes = {budget}});
    table.rows.push_back({.policy = "h2o", .metric = "loss_ratio", .value = value / 10, .axes = {budget}});
  }
  return table;
}

PlotPlan plan_of(PlotKind kind, std::vector<ReferenceLine> lines) {
  PlotPlan plan;
  plan.kind = kind;
  plan.name = "p";
  plan.measure.metrics = {"speed"};
  plan.x = "budget";
  plan.x_scale = kind == PlotKind::kCurve ? Scale::kLog2 : Scale::kLinear;
  plan.series = {"policy"};
  plan.references = std::move(lines);
  return plan;
}

std::vector<Shape> dashed_lines(const Drawing& drawing) {
  std::vector<Shape> lines;
  for (const PictureItem& item : drawing.picture.items) {
    const auto* shape = std::get_if<Shape>(&item);
    if (shape != nullptr && shape->stroke && shape->stroke->dashes == std::vector<double>{4, 3})
      lines.push_back(*shape);
  }
  return lines;
}

// The series' line, which has a point a budget.
Shape series_line(const Drawing& drawing) {
  for (const PictureItem& item : drawing.picture.items) {
    const auto* shape = std::get_if<Shape>(&item);
    if (shape != nullptr && shape->stroke && shape->points.size() == 2 && shape->stroke->width > 1.2) return *shape;
  }
  ADD_FAILURE() << "no series was drawn";
  return {};
}

std::vector<std::string> texts(const Drawing& drawing) {
  std::vector<std::string> found;
  for (const PictureItem& item : drawing.picture.items) {
    if (const auto* text = std::get_if<Text>(&item)) found.push_back(text->text);
  }
  return found;
}

// 512 is halfway between 256 and 1024 on a logarithmic axis, and 20 between 10 and 30.
TEST(ReferenceLines, OfACurveStandWhereTheirValuesAre) {
  const Drawing drawing =
      draw(plan_of(PlotKind::kCurve, {{.x = 512, .label = "trained length"}, {.y = 20}}), two_points());
  const auto ends = series_line(drawing).points;
  const auto lines = dashed_lines(drawing);
  ASSERT_EQ(lines.size(), 2u);
  for (const auto& point : lines[0].points) EXPECT_THAT(point[0], DoubleNear((ends[0][0] + ends[1][0]) / 2, 1e-9));
  for (const auto& point : lines[1].points) EXPECT_THAT(point[1], DoubleNear((ends[0][1] + ends[1][1]) / 2, 1e-9));
  EXPECT_THAT(texts(drawing), Contains("trained length"));
  EXPECT_THAT(drawing.notes, Contains("Dashed line: x = 512, trained length."));
  EXPECT_THAT(drawing.notes, Contains("Dashed line: 20."));
}

// What a reader compares with is shown, however far from the data.
TEST(ReferenceLines, AreInsideThePlotUnlessItsRangeSaysOtherwise) {
  PlotPlan plan = plan_of(PlotKind::kCurve, {{.x = 65536}, {.y = 500}});
  EXPECT_EQ(dashed_lines(draw(plan, two_points())).size(), 2u);
  plan.x_range = {{200, 2000}};
  plan.y_range = {{0, 40}};
  EXPECT_EQ(dashed_lines(draw(plan, two_points())).size(), 0u);
}

// Of a ratio there is one at 1, which the spec may name; never two.
TEST(ReferenceLines, OfARatioHoldOneAtOne) {
  PlotPlan plan = plan_of(PlotKind::kCurve, {});
  plan.measure.metrics = {"loss_ratio"};
  EXPECT_THAT(draw(plan, two_points()).notes, ElementsAre(_, "Dashed line: 1, the full cache."));
  plan.references = {{.y = 1, .label = "nothing lost"}, {.y = 2}};
  const Drawing drawing = draw(plan, two_points());
  EXPECT_EQ(dashed_lines(drawing).size(), 2u);
  EXPECT_THAT(drawing.notes, ElementsAre(_, "Dashed line: 1, nothing lost.", "Dashed line: 2."));
}

TEST(ReferenceLines, OfBarsAreUprightAtTheirValues) {
  PlotPlan plan = plan_of(PlotKind::kBars, {{.y = 20, .label = "target"}});
  plan.facet = {"metric"};
  plan.where = {{"metric", {{"speed"}}}};
  const auto lines = dashed_lines(draw(plan, two_points()));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].points[0][0], lines[0].points[1][0]);
  EXPECT_NE(lines[0].points[0][1], lines[0].points[1][1]);
}

TEST(ReferenceLines, OfAScatterPlotCrossIt) {
  PlotPlan plan = plan_of(PlotKind::kScatter, {{.x = 2, .label = "twice"}, {.y = 20}});
  plan.x = "loss_ratio";
  plan.measured_x = true;
  const Drawing drawing = draw(plan, two_points());
  EXPECT_EQ(dashed_lines(drawing).size(), 2u);
  EXPECT_THAT(texts(drawing), Contains("twice"));
}

TEST(ReferenceLines, AtACategoryThatIsNotThereAreSaidToBeMissing) {
  RowTable rows = two_points();
  rows.rows[0].axes = {"many"};
  const Drawing drawing = draw(plan_of(PlotKind::kCurve, {{.x = 1024}, {.x = 7}}), rows);
  EXPECT_EQ(dashed_lines(drawing).size(), 1u);
  EXPECT_THAT(drawing.notes, Contains("There is no x of 7 to draw a line at."));
}

}  // namespace
}  // namespace kv
