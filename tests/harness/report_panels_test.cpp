#include <gtest/gtest.h>

#include "harness/report/canvas.h"
#include "harness/report/plot.h"
#include "harness/report/plot_parts.h"

namespace kv {
namespace {

std::vector<Key> facets_of(int layers, int heads) {
  std::vector<Key> facets;
  for (int layer = 0; layer < layers; ++layer) {
    for (int head = 0; head < heads; ++head) facets.push_back({std::to_string(layer), std::to_string(head)});
  }
  return facets;
}

TEST(Panels, OfTwoColumnsStandInAGrid) {
  const PanelGrid grid = arrange_panels(facets_of(7, 2));
  EXPECT_EQ(grid.columns, 2);
  EXPECT_EQ(grid.cells, 14);
  EXPECT_EQ(grid.places[5], 5);
}

TEST(Panels, LeaveAHoleWhereACombinationIsMissing) {
  std::vector<Key> facets = facets_of(7, 12);
  facets.erase(facets.begin() + 10);  // layer 0 has no head 10, which comes up behind head 11 and belongs before it
  const PanelGrid grid = arrange_panels(facets);
  EXPECT_EQ(grid.columns, 12);
  EXPECT_EQ(grid.cells, 84);
  EXPECT_EQ(grid.places[9], 9);
  EXPECT_EQ(grid.places[10], 11);
  EXPECT_EQ(grid.places[11], 12);
}

TEST(Panels, FewOrOfOneColumnStandAsTheyCome) {
  EXPECT_EQ(arrange_panels(facets_of(6, 2)).columns, 0);
  std::vector<Key> policies;
  for (int i = 0; i < 20; ++i) policies.push_back({std::to_string(i)});
  EXPECT_EQ(arrange_panels(policies).columns, 0);
  EXPECT_EQ(arrange_panels({}).columns, 0);
}

TEST(Panels, OfAGridHaveTickLabelsAtItsEdgeOnly) {
  RowTable rows{.axes = {}, .rows = {}};
  for (int layer = 0; layer < 7; ++layer) {
    for (int head = 0; head < 2; ++head) {
      for (const double x : {0.0, 0.5, 1.0}) {
        Row row{.policy = "p", .layer = layer, .head = head, .x = x};
        row.metric = "curve_head";
        row.value = x;
        rows.rows.push_back(row);
      }
    }
  }
  PlotPlan plan;
  plan.name = "c";
  plan.measure.metrics = {"curve_head"};
  plan.x = "x";
  plan.facet = {"layer", "head"};
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  const std::string commands = draw(plan, rows).commands;
  EXPECT_EQ(count(commands, "set format x '%h'"), 2);  // the lowest of 2 columns
  EXPECT_EQ(count(commands, "set format y '%h'"), 7);  // the first of 7 rows
  EXPECT_EQ(count(commands, "set format x ''"), 12);
  plan.where = {{"layer", {"0"}}};
  EXPECT_EQ(count(draw(plan, rows).commands, "set format x"), 0);
}

TEST(Panels, LeaveRoomForLongTickLabels) {
  const auto width = [](double largest) {
    RowTable rows{.axes = {}, .rows = {}};
    for (const double x : {1.0, 2.0}) {
      Row row{.policy = "p", .x = x};
      row.metric = "speed";
      row.value = x / 2 * largest;
      rows.rows.push_back(row);
    }
    PlotPlan plan;
    plan.name = "c";
    plan.measure.metrics = {"speed"};
    plan.x = "x";
    return draw(plan, rows).width;
  };
  EXPECT_EQ(width(5000), width(5));
  EXPECT_GT(width(50'000), width(5000));  // else the axis label, pushed out by five digits, is cut off
}

TEST(Axis, OfFewDecadesHasTicksBetweenThem) {
  EXPECT_EQ(log_ticks("cb", Scale::kLog10, {0.03, 0.4}), "; set cbtics (0.05, 0.1, 0.2)");
  EXPECT_EQ(log_ticks("cb", Scale::kLog10, {0.0001, 0.4}), "");
  EXPECT_EQ(log_ticks("cb", Scale::kLinear, {0.03, 0.4}), "");
}

}  // namespace
}  // namespace kv
