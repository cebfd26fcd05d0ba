// Curves over what is measured: a point a case, where its mean of a metric puts it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/report/plot.h"
#include "harness/rows.h"

namespace kv {
namespace {

using testing::Contains;
using testing::DoubleNear;

class MeasuredX : public testing::Test {
 protected:
  void add(const std::string& policy, const std::string& window, double size, double loss,
           const std::string& data = "prose") {
    Row row{.model = "m", .data = data, .policy = policy, .sample = 0, .axes = {window}};
    row.metric = "cache_size";
    row.value = size;
    rows_.rows.push_back(row);
    row.metric = "loss";
    row.value = loss;
    rows_.rows.push_back(row);
  }

  static PlotPlan plan() {
    PlotPlan plan;
    plan.name = "p";
    plan.measure.metrics = {"loss"};
    plan.x = "cache_size";
    plan.measured_x = true;
    plan.series = {"policy"};
    return plan;
  }

  // The lines that join at least three points, as series do.
  static std::vector<Shape> lines(const Drawing& drawing) {
    std::vector<Shape> found;
    for (const PictureItem& item : drawing.picture.items) {
      const auto* shape = std::get_if<Shape>(&item);
      if (shape != nullptr && shape->stroke && !shape->closed && shape->stroke->width > 1.2 &&
          shape->points.size() >= 3) {
        found.push_back(*shape);
      }
    }
    return found;
  }

  static std::vector<std::string> texts(const Drawing& drawing) {
    std::vector<std::string> found;
    for (const PictureItem& item : drawing.picture.items) {
      if (const auto* text = std::get_if<Text>(&item)) found.push_back(text->text);
    }
    return found;
  }

  RowTable rows_{.axes = {"local.window"}};
};

// The axis comes as 32, 8, 16; sizes are 0.8, 0.2, 0.4, and the losses 1, 4, 2.
TEST_F(MeasuredX, JoinsTheCasesOfASeriesInOrderOfTheirSizes) {
  add("local", "32", 0.8, 1);
  add("local", "8", 0.2, 4);
  add("local", "16", 0.4, 2);
  const Drawing drawing = draw(plan(), rows_);
  const auto found = lines(drawing);
  ASSERT_EQ(found.size(), 1u);
  const auto& points = found[0].points;
  ASSERT_EQ(points.size(), 3u);
  EXPECT_GT(points[1][0], points[0][0]);
  EXPECT_THAT(points[2][0] - points[1][0], DoubleNear(2 * (points[1][0] - points[0][0]), 1e-6));
  EXPECT_THAT(points[1][1] - points[0][1], DoubleNear(2 * (points[2][1] - points[1][1]), 1e-6));
  EXPECT_THAT(texts(drawing), Contains("cache size"));
}

// By a scale of powers of two 0.2, 0.4 and 0.8 are equally far apart.
TEST_F(MeasuredX, GrowsAsTheScaleSays) {
  add("local", "8", 0.2, 4);
  add("local", "16", 0.4, 2);
  add("local", "32", 0.8, 1);
  PlotPlan log = plan();
  log.x_scale = Scale::kLog2;
  const auto points = lines(draw(log, rows_)).at(0).points;
  EXPECT_THAT(points[2][0] - points[1][0], DoubleNear(points[1][0] - points[0][0], 1e-6));
  EXPECT_THAT(texts(draw(log, rows_)), Contains("0.5"));
}

TEST_F(MeasuredX, PoliciesOfOneLabelAreOneSeries) {
  add("local-8", "", 0.2, 4);
  add("local-16", "", 0.4, 2);
  add("local-32", "", 0.8, 1);
  EXPECT_TRUE(lines(draw(plan(), rows_)).empty());
  PlotPlan labelled = plan();
  labelled.labels = {{"local-8", "local"}, {"local-16", "local"}, {"local-32", "local"}};
  EXPECT_EQ(lines(draw(labelled, rows_)).size(), 1u);
}

// A text of another entry of the data is no other case: sizes 0.2 and 0.4 make one point at 0.3.
TEST_F(MeasuredX, DataThatNothingTellsApartIsAveraged) {
  for (const auto& [data, more] : {std::pair("prose", 0.0), {"code", 0.2}}) {
    add("local", "8", 0.2 + more, 4, data);
    add("local", "16", 0.4 + more, 2, data);
    add("local", "32", 0.8 + more, 1, data);
  }
  const Drawing drawing = draw(plan(), rows_);
  ASSERT_EQ(lines(drawing).size(), 1u);
  const auto points = lines(drawing)[0].points;
  ASSERT_EQ(points.size(), 3u);
  EXPECT_THAT(points[2][0] - points[1][0], DoubleNear(2 * (points[1][0] - points[0][0]), 1e-6));
  EXPECT_THAT(drawing.notes, Contains("Each point is taken over all values of: data."));
  PlotPlan apart = plan();
  apart.facet = {"data"};
  EXPECT_EQ(lines(draw(apart, rows_)).size(), 2u);
}

TEST_F(MeasuredX, ACaseWithoutTheSizeIsLeftOutAndSaid) {
  add("local", "8", 0.2, 4);
  add("local", "16", 0.4, 2);
  add("local", "32", 0.8, 1);
  add("local", "64", 0.9, 1);
  Row& size = rows_.rows[6];
  size.value.reset();
  size.skipped = "no size";
  const Drawing drawing = draw(plan(), rows_);
  EXPECT_EQ(lines(drawing).at(0).points.size(), 3u);
  EXPECT_THAT(drawing.notes, Contains("Left out, without cache_size: 1 point: no size."));
  std::erase_if(rows_.rows, [](const Row& row) { return row.metric == "cache_size" && row.axes[0] != "8"; });
  EXPECT_THAT(draw(plan(), rows_).notes, Contains("Left out, without cache_size: 3 points."));
}

// The case's size goes with each of several metrics, and with each layer.
TEST_F(MeasuredX, OfMetricsAndLayersIsTheirCases) {
  for (const auto& [window, size] : {std::pair("8", 0.2), {"16", 0.4}, {"32", 0.8}}) {
    add("local", window, size, 1 / size);
    for (const int layer : {0, 1}) {
      Row row = rows_.rows.back();
      row.metric = "cosine";
      row.layer = layer;
      rows_.rows.push_back(row);
    }
  }
  PlotPlan metrics = plan();
  metrics.measure.metrics = {"loss", "cosine"};
  metrics.facet = {"metric"};
  EXPECT_EQ(lines(draw(metrics, rows_)).size(), 2u);
  PlotPlan layers = plan();
  layers.measure.metrics = {"cosine"};
  layers.facet = {"layer"};
  EXPECT_EQ(lines(draw(layers, rows_)).size(), 2u);
}

TEST_F(MeasuredX, OfBytesIsNamedWithItsUnit) {
  add("local", "8", 2e9, 4);
  add("local", "16", 4e9, 2);
  for (Row& row : rows_.rows) {
    if (row.metric == "cache_size") row.unit = "bytes";
  }
  PlotPlan gigabytes = plan();
  EXPECT_THAT(texts(draw(gigabytes, rows_)), Contains("cache size (bytes)"));
  gigabytes.measure.unit = "GB";
  EXPECT_THAT(texts(draw(gigabytes, rows_)), Contains("cache size (GB)"));
}

}  // namespace
}  // namespace kv
