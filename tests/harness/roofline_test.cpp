#include <gtest/gtest.h>

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
  plan.where = {{"by", {"cuda"}}};
  return plan;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Roofline, DrawsEveryKernelBelowTwoCeilings) {
  const Drawing drawing = draw(make_plan(), make_rows());
  EXPECT_EQ(drawing.empty, "");
  // The roof bends at 800 / 4 = 200 FLOP/byte.
  EXPECT_NE(drawing.data.find("\n200 800\n"), drawing.data.npos) << drawing.data;
  EXPECT_NE(drawing.data.find("\n800 400\n"), drawing.data.npos) << drawing.data;
  EXPECT_NE(drawing.data.find("\n4 14\n"), drawing.data.npos) << drawing.data;
  EXPECT_EQ(count(drawing.commands, "'8K'"), 1);
  EXPECT_EQ(count(drawing.commands, "'96x1280'"), 1);
  EXPECT_NE(drawing.commands.find("copy peak 4 TB/s"), drawing.commands.npos);
  EXPECT_NE(drawing.commands.find("gemm peak 800 TFLOP/s"), drawing.commands.npos);
  EXPECT_TRUE(drawing.notes.empty());
}

TEST(Roofline, LeavesOutLabelsWithoutRoomAndSaysSo) {
  RowTable rows = make_rows();
  for (int i = 0; i < 40; ++i) {  // at one place
    for (const auto& [metric, value] : {std::pair{"intensity", 100.0}, {"compute", 100.0}}) {
      Row row = rows.rows[2];
      row.metric = metric;
      row.value = value;
      row.axes[1] = std::to_string(i);
      rows.rows.push_back(row);
    }
  }
  const Drawing drawing = draw(make_plan(), rows);
  ASSERT_EQ(drawing.notes.size(), 1u);
  const int drawn = count(drawing.commands, "center tc ls");
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
