#include <gtest/gtest.h>

#include <cmath>

#include "harness/report/axis.h"
#include "harness/report/frame.h"
#include "harness/report/plot.h"

namespace kv {
namespace {

std::vector<Key> facets_of(int layers, int heads) {
  std::vector<Key> facets;
  for (int layer = 0; layer < layers; ++layer) {
    for (int head = 0; head < heads; ++head) facets.push_back({std::to_string(layer), std::to_string(head)});
  }
  return facets;
}

PanelGrid arrange(const std::vector<Key>& facets) { return arrange_panels(facets, {"layer", "head"}, {}); }

TEST(Panels, OfTwoColumnsStandInAGrid) {
  const PanelGrid grid = arrange(facets_of(7, 2));
  EXPECT_EQ(grid.columns, 2);
  EXPECT_EQ(grid.rows, 7);
  EXPECT_EQ(grid.places[5], 5);
  EXPECT_EQ(grid.column_titles, (std::vector<std::string>{"head=0", "head=1"}));
  EXPECT_EQ(grid.row_titles.back(), "layer=6");
}

TEST(Panels, LeaveAHoleWhereACombinationIsMissing) {
  std::vector<Key> facets = facets_of(7, 12);
  facets.erase(facets.begin() + 10);  // layer 0 has no head 10, which comes up behind head 11 and belongs before it
  const PanelGrid grid = arrange(facets);
  EXPECT_EQ(grid.columns, 12);
  EXPECT_EQ(grid.rows, 7);
  EXPECT_EQ(grid.places[9], 9);
  EXPECT_EQ(grid.places[10], 11);
  EXPECT_EQ(grid.places[11], 12);
}

TEST(Panels, OfOneColumnOrOfFewCombinationsStandAsTheyCome) {
  std::vector<Key> policies, pairs;
  for (int i = 0; i < 20; ++i) policies.push_back({std::to_string(i)});
  EXPECT_FALSE(arrange_panels(policies, {"policy"}, {}).crossed);
  for (int i = 0; i < 5; ++i) pairs.push_back({std::to_string(i), std::to_string(i)});  // 5 of 25 cells
  EXPECT_FALSE(arrange(pairs).crossed);
  EXPECT_EQ(arrange(pairs).columns, 3);
  EXPECT_FALSE(arrange({}).crossed);
}

RowTable layer_head_rows() {
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
  return rows;
}

int count(const Drawing& drawing, const std::string& text) {
  int found = 0;
  for (const PictureItem& item : drawing.picture.items) {
    const Text* label = std::get_if<Text>(&item);
    found += label != nullptr && label->text == text;
  }
  return found;
}

TEST(Panels, OfAGridShareTicksTitlesAndLabels) {
  PlotPlan plan;
  plan.name = "c";
  plan.measure.metrics = {"curve_head"};
  plan.x = "x";
  plan.facet = {"layer", "head"};
  plan.x_label = "share";
  const Drawing drawing = draw(plan, layer_head_rows());
  EXPECT_EQ(count(drawing, "0.5"), 2 + 7);  // below the lowest of 2 columns, beside the first of 7 rows
  EXPECT_EQ(count(drawing, "head=0"), 1);
  EXPECT_EQ(count(drawing, "layer=3"), 1);
  EXPECT_EQ(count(drawing, "share"), 1);
  EXPECT_EQ(count(drawing, "curve head"), 1);
}

TEST(PlotAxis, OfFewDecadesHasTicksBetweenThem) {
  const auto texts = [](Scale scale, double low, double high) {
    std::vector<std::string> out;
    for (const Tick& tick : PlotAxis(scale, {low, high}, {0, 100}).ticks(5)) out.push_back(tick.text);
    return out;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts(Scale::kLog10, 0.03, 0.4), (Texts{"0.05", "0.1", "0.2"}));
  EXPECT_EQ(texts(Scale::kLog10, 0.0009, 11), (Texts{"0.001", "0.01", "0.1", "1", "10"}));
  EXPECT_EQ(texts(Scale::kLog2, 128, 2048), (Texts{"128", "256", "512", "1024", "2048"}));
  EXPECT_EQ(texts(Scale::kLinear, 0, 1), (Texts{"0", "0.2", "0.4", "0.6", "0.8", "1"}));
  EXPECT_EQ(texts(Scale::kLinear, -1e6, 2e6), (Texts{"-1M", "0", "1M", "2M"}));
}

TEST(PlotAxis, OfANarrowPlaceHasThreeTicksAtLeast) {
  std::vector<std::string> texts;
  for (const Tick& tick : PlotAxis(Scale::kLinear, {0.06, 0.4}, {0, 100}).ticks(3)) texts.push_back(tick.text);
  EXPECT_EQ(texts, (std::vector<std::string>{"0.1", "0.2", "0.3", "0.4"})) << "0.2 and 0.4 would be rounder";
}

// Means of the same numbers in another order differ in their last digit; between them there is no room for a tick.
TEST(PlotAxes, OfNumbersThatNearlyCoincideHaveRoomAroundThem) {
  const double low = 0.19999999999999998, high = 0.20000000000000004;
  for (const Scale scale : {Scale::kLinear, Scale::kLog2, Scale::kLog10}) {
    Range range(scale);
    range.add(low);
    range.add(high);
    const auto [begin, end] = range.padded(0.05);
    EXPECT_LT(begin, 0.19);
    EXPECT_GT(end, 0.21);
    EXPECT_LE(PlotAxis(scale, {begin, end}, {0, 100}).ticks(5).size(), 10U);
  }
  EXPECT_LE(PlotAxis(Scale::kLinear, {low, high}, {0, 100}).ticks(5).size(), 100U) << "where a spec asks for that";
}

TEST(PlotAxes, OfNumbersAsLargeAsTheyComeAreFinite) {
  for (const Scale scale : {Scale::kLinear, Scale::kLog10}) {
    Range range(scale);
    range.add(scale == Scale::kLinear ? -1.7e308 : 1e-308);
    range.add(1.7e308);
    const auto [begin, end] = range.padded(0.05);
    const PlotAxis axis(scale, {begin, end}, {0, 100});
    for (const Tick& tick : axis.ticks(5)) EXPECT_TRUE(std::isfinite(axis.at(tick.value))) << tick.text;
  }
}

}  // namespace
}  // namespace kv
