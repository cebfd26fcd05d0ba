#include <gtest/gtest.h>

#include <algorithm>

#include "harness/report/plot.h"
#include "harness/rows.h"

namespace kv {
namespace {

// Two kernels on a made-up device with 4 TB/s and 800 TFLOP/s.
RowTable make_rows() {
  RowTable table{.axes = {"kernel", "shape", "by"}};
  const auto add = [&](const std::string& kernel, const std::string& shape, const std::string& metric, double value) {
    table.rows.push_back({.experiment = "e",
                          .metric = metric,
                          .value = value,
                          .unit = metric == "copy_peak" ? "TB/s" : "TFLOP/s",
                          .axes = {kernel, shape, kernel.empty() ? "" : "cuda"}});
  };
  add("", "", "copy_peak", 4);
  add("", "", "gemm_peak", 800);
  add("prefill", "8K", "intensity", 800);
  add("prefill", "8K", "compute", 400);
  add("decode", "96x1280", "intensity", 4);
  add("decode", "96x1280", "compute", 14);
  add("append", "8K", "compute", 0);  // no FLOPs: no place on the plot
  return table;
}

PlotPlan make_plan() {
  PlotPlan plan;
  plan.kind = PlotKind::kRoofline;
  plan.name = "roof";
  plan.measure.metrics = {"intensity", "compute"};
  plan.ceilings = {"copy_peak", "gemm_peak"};
  plan.series = {"kernel"};
  plan.label = {"shape"};
  plan.where = {{"by", {{"cuda"}}}};
  return plan;
}

std::vector<std::string> texts(const Drawing& drawing) {
  std::vector<std::string> out;
  for (const PictureItem& item : drawing.picture.items) {
    if (const Text* text = std::get_if<Text>(&item)) out.push_back(text->text);
  }
  return out;
}

int count(const std::vector<std::string>& list, const std::string& text) {
  return static_cast<int>(std::count(list.begin(), list.end(), text));
}

TEST(Roofline, DrawsEveryKernelBelowTwoCeilings) {
  const Drawing drawing = draw(make_plan(), make_rows());
  EXPECT_EQ(drawing.empty, "");
  // The roof begins at the left edge and bends at 800 / 4 = 200 FLOP/byte, where the slope meets the flat line.
  const auto roof = std::find_if(drawing.picture.items.begin(), drawing.picture.items.end(), [](const auto& item) {
    const Shape* shape = std::get_if<Shape>(&item);
    return shape != nullptr && !shape->closed && shape->points.size() == 3;
  });
  ASSERT_NE(roof, drawing.picture.items.end());
  const auto& points = std::get<Shape>(*roof).points;
  EXPECT_DOUBLE_EQ(points[1][1], points[2][1]);
  EXPECT_GT(points[0][1], points[1][1]);
  EXPECT_EQ(count(texts(drawing), "8K"), 1);
  EXPECT_EQ(count(texts(drawing), "96x1280"), 1);
  EXPECT_EQ(count(texts(drawing), "copy peak 4 TB/s"), 1);
  EXPECT_EQ(count(texts(drawing), "gemm peak 800 TFLOP/s"), 1);
  EXPECT_TRUE(drawing.notes.empty());
}

TEST(Roofline, LeavesOutLabelsWithoutRoomAndSaysSo) {
  RowTable rows = make_rows();
  for (int i = 0; i < 40; ++i) {  // at one place
    for (const auto& [metric, value] : {std::pair{"intensity", 100.0}, {"compute", 100.0}}) {
      Row row = rows.rows[2];
      row.metric = metric;
      row.value = value;
      row.axes[1] = "shape" + std::to_string(i);
      rows.rows.push_back(row);
    }
  }
  const Drawing drawing = draw(make_plan(), rows);
  ASSERT_EQ(drawing.notes.size(), 1u);
  int drawn = 0;
  for (const std::string& text : texts(drawing)) drawn += text == "8K" || text == "96x1280";
  for (int i = 0; i < 40; ++i) drawn += count(texts(drawing), "shape" + std::to_string(i));
  EXPECT_GT(drawn, 2);
  EXPECT_EQ(drawing.notes[0], std::to_string(42 - drawn) + " labels found no room and are left out.");
}

TEST(Roofline, WithoutACeilingSaysWhichMetricLacks) {
  RowTable rows = make_rows();
  rows.rows.erase(rows.rows.begin() + 1);
  EXPECT_EQ(draw(make_plan(), rows).empty, "No rows with a value for metric gemm_peak.");
}

}  // namespace
}  // namespace kv
