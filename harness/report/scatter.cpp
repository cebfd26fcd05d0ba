#include "harness/report/case_points.h"
#include "harness/report/frame.h"
#include "harness/report/label_placer.h"
#include "harness/report/plot_kinds.h"
#include "harness/report/plot_parts.h"
#include "harness/report/reference_lines.h"

namespace kv {
namespace {

constexpr double kOneWidth = 460, kOneHeight = 320, kFacetWidth = 300, kFacetHeight = 240;

struct ScatterPoint {
  std::string label;
  Style style;
  Estimate x, y;
};

struct ScatterPanel {
  Key facet;
  std::vector<ScatterPoint> points{};
};

struct ScatterChart {
  std::vector<ScatterPanel> panels{};
  std::string x_unit{}, y_unit{};
  std::vector<LegendEntry> legend{};
  std::vector<std::string> notes{};
};

// A point a case: every combination of policy, data, model and axes.
ScatterChart make_scatter(const PlotPlan& plan, const RowTable& rows) {
  const CasePoints cases = collect_case_points(plan, rows, {"policy", "data", "model"});
  ScatterChart chart{.x_unit = cases.x_unit, .y_unit = cases.y_unit};
  SeriesStyles styles(plan.series);
  for (const CasePoint& point : cases.points) {
    const std::string label = label_of(plan.labels, plan.series, point.series);
    const Style style = styles.of(point.series);
    if (!label.empty()) {
      find_or_add(
          chart.legend, [&](const LegendEntry& e) { return e.label == label; }, LegendEntry{label, style});
    }
    ScatterPanel& panel = find_or_add(
        chart.panels, [&](const ScatterPanel& p) { return p.facet == point.facet; }, ScatterPanel{point.facet});
    panel.points.push_back({label, style, point.x, point.y});
  }
  note_samples(plan, cases.y, "whiskers", chart.notes);
  chart.notes.insert(chart.notes.end(), cases.notes.begin(), cases.notes.end());
  note_reference_lines(plan, chart.notes);
  return chart;
}

void draw_whiskers(Picture& picture, const ScatterPoint& point, const PlotAxis& x, const PlotAxis& y, const Box& box) {
  const Stroke stroke{.color = point.style.color, .width = 0.8};
  if (const auto& interval = point.x.interval) {
    picture.add(
        Shape{.points = {{x.at(interval->low), y.at(point.y.value)}, {x.at(interval->high), y.at(point.y.value)}},
              .stroke = stroke,
              .clip = box});
  }
  if (const auto& interval = point.y.interval) {
    picture.add(
        Shape{.points = {{x.at(point.x.value), y.at(interval->low)}, {x.at(point.x.value), y.at(interval->high)}},
              .stroke = stroke,
              .clip = box});
  }
}

// Beside their points where there is room; the legend has all of them.
void draw_labels(Picture& picture, const std::vector<ScatterPoint>& points, const PlotAxis& x, const PlotAxis& y,
                 LabelPlacer& placer) {
  for (const ScatterPoint& point : points) {
    const auto place = placer.place(x.at(point.x.value), y.at(point.y.value), point.label);
    if (!place) continue;
    picture.add(Text{.x = place->left,
                     .y = (place->top + place->bottom) / 2,
                     .text = point.label,
                     .size = LabelPlacer::kSize,
                     .color = kQuiet});
  }
}

}  // namespace

Drawing draw_scatter(const PlotPlan& plan, const RowTable& rows) {
  const ScatterChart chart = make_scatter(plan, rows);
  Drawing drawing;
  drawing.notes = chart.notes;
  if (chart.panels.empty()) {
    drawing.empty = no_rows(plan.measure);
    return drawing;
  }
  Range x_all(plan.x_scale), y_all(plan.y_scale);
  FrameOptions options;
  place_panels(options, chart.panels, plan.facet, plan.labels);
  bool one_point_each = true;
  for (const ScatterPanel& panel : chart.panels) {
    one_point_each = one_point_each && panel.points.size() <= chart.legend.size();
    for (const ScatterPoint& point : panel.points) {
      x_all.add(point.x);
      y_all.add(point.y);
    }
  }
  const std::vector<ReferenceLine> lines = reference_lines(plan);
  for (const ReferenceLine& line : lines) line.x ? x_all.add(*line.x) : y_all.add(*line.y);
  const auto x_range = plan.x_range.value_or(x_all.padded(0.05));
  const PlotAxis y_axis(plan.y_scale, plan.y_range.value_or(y_all.padded(0.05)), {1, 0});
  options.panel_width = chart.panels.size() == 1 ? kOneWidth : kFacetWidth;
  options.panel_height = chart.panels.size() == 1 ? kOneHeight : kFacetHeight;
  options.left = widest_tick(y_axis.ticks(6)) + 14;
  options.x_label = x_label_of(plan, chart.x_unit);
  options.y_label = default_label(plan, plan.y_label, chart.y_unit);
  Picture& picture = drawing.picture;
  Frame frame(picture, options);
  for (std::size_t p = 0; p < chart.panels.size(); ++p) {
    const Box box = frame.panel(p);
    const PlotAxis x(plan.x_scale, x_range, {box.left, box.right});
    const PlotAxis y = y_axis.placed({box.bottom, box.top});
    frame.draw_x_axis(p, x, x.ticks(5));
    frame.draw_y_axis(p, y, y.ticks(6));
    frame.draw_border(p);
    const auto& points = chart.panels[p].points;
    LabelPlacer placer(box);
    for (const ScatterPoint& point : points) placer.occupy_point(x.at(point.x.value), y.at(point.y.value));
    for (const ReferenceLine& line : lines) {
      if (line.x) draw_upright_line(picture, box, x.at(*line.x), line.label, placer);
      if (line.y) draw_level_line(picture, box, y.at(*line.y), line.label, placer);
    }
    for (const ScatterPoint& point : points) draw_whiskers(picture, point, x, y, box);
    for (const ScatterPoint& point : points) {
      const double place_x = x.at(point.x.value), place_y = y.at(point.y.value);
      const bool inside = place_x >= box.left && place_x <= box.right && place_y >= box.top && place_y <= box.bottom;
      if (inside) draw_mark(picture, place_x, place_y, point.style);
    }
    if (one_point_each) draw_labels(picture, points, x, y, placer);
  }
  draw_legend(picture, chart.legend, LegendMark::kPoint);
  return drawing;
}

}  // namespace kv
