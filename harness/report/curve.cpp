#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/report/plot_kinds.h"
#include "harness/report/plot_parts.h"
#include "harness/report/reference_lines.h"
#include "harness/report/series_chart.h"

namespace kv {
namespace {

struct PanelSize {
  double width = 0, height = 0;
};
constexpr PanelSize kOne = {520, 320}, kSeveral = {270, 200}, kMany = {150, 105};
constexpr std::size_t kManyPanels = 12, kDirectLabels = 14;
constexpr double kLabelLine = 14, kLeader = 18;

Range range_of(const SeriesChart& chart, Scale scale, bool along_x) {
  Range range(scale);
  for (const SeriesPanel& panel : chart.panels) {
    for (const Series& series : panel.series) {
      if (series.constant && !along_x) range.add(*series.constant);
      for (const SeriesPoint& point : series.points) along_x ? range.add(point.x) : range.add(point.y);
      for (const auto& [x, y] : series.paper) range.add(along_x ? x : y);
    }
  }
  return range;
}

std::vector<Tick> x_ticks(const PlotPlan& plan, const SeriesChart& chart, const PlotAxis& axis) {
  const double room = axis.pixels()[1] - axis.pixels()[0];
  if (chart.places.categories) {
    std::vector<std::string> labels;
    for (const std::string& label : chart.places.labels) {
      labels.push_back(elide(label_of(plan.labels, label), 110, kSmallText));
    }
    return category_ticks(labels, 24);
  }
  // The values that were run, where they are few and far enough apart to be read.
  std::vector<Tick> ran;
  double last = -1e9, nearest = 1e9;
  for (const double x : chart.places.distinct) {
    ran.push_back({x, tick_text(x)});
    nearest = std::min(nearest, axis.at(x) - last);
    last = axis.at(x);
  }
  if (ran.size() >= 2 && ran.size() <= 8 && nearest >= 40) return ran;
  return axis.ticks(std::max(2, static_cast<int>(room / 70)));
}

// Whether a mean's interval is a band, whiskers where points stand apart, or absent.
void draw_spread(Picture& picture, const Series& series, const PlotAxis& x, const PlotAxis& y,
                 const std::optional<Box>& clip, bool categories) {
  const bool any = std::any_of(series.points.begin(), series.points.end(),
                               [](const SeriesPoint& point) { return point.y.interval.has_value(); });
  if (!any) return;
  if (categories || series.points.size() == 1) {
    for (const SeriesPoint& point : series.points) {
      if (!point.y.interval) continue;
      const double place = x.at(point.x);
      picture.add(Shape{.points = {{place, y.at(point.y.interval->low)}, {place, y.at(point.y.interval->high)}},
                        .stroke = Stroke{.color = series.style.color, .width = 1.2},
                        .clip = clip});
    }
    return;
  }
  Shape band{.closed = true, .fill = series.style.color, .faint = true, .clip = clip};
  const auto interval = [](const SeriesPoint& point) {
    return point.y.interval.value_or(Interval{point.y.value, point.y.value});
  };
  for (const SeriesPoint& point : series.points) band.points.push_back({x.at(point.x), y.at(interval(point).low)});
  for (auto point = series.points.rbegin(); point != series.points.rend(); ++point) {
    band.points.push_back({x.at(point->x), y.at(interval(*point).high)});
  }
  picture.add(std::move(band));
}

// The line, and markers far enough apart to be told apart, at another phase for each series.
void draw_line(Picture& picture, const Series& series, const PlotAxis& x, const PlotAxis& y,
               const std::optional<Box>& clip, std::size_t phase) {
  if (series.constant) {
    const double level = y.at(series.constant->value);
    picture.add(Shape{
        .points = {{x.pixels()[0], level}, {x.pixels()[1], level}}, .stroke = line_stroke(series.style), .clip = clip});
  }
  Shape line{.stroke = line_stroke(series.style), .clip = clip};
  for (const SeriesPoint& point : series.points) line.points.push_back({x.at(point.x), y.at(point.y.value)});
  const auto points = line.points;
  if (points.size() > 1) picture.add(std::move(line));
  const bool small = x.pixels()[1] - x.pixels()[0] < kSeveral.width;
  const std::size_t every = std::max<std::size_t>(1, points.size() / (small ? 4 : 10));
  for (std::size_t i = every == 1 ? 0 : phase * 2 % every; i < points.size(); i += every) {
    const bool seen = !clip || (points[i][1] >= clip->top && points[i][1] <= clip->bottom &&
                                points[i][0] >= clip->left && points[i][0] <= clip->right);
    if (seen) draw_mark(picture, points[i][0], points[i][1], series.style, small ? 5.5 : 7);
  }
  Style ring = series.style;
  ring.hollow = true;
  for (const auto& [place, value] : series.paper) {
    draw_mark(picture, x.at(place), y.at(value), ring, 11);
  }
}

// Where a line ends, or leaves the box.
struct Spot {
  double x, y;
};
Spot end_of(const Series& series, const PlotAxis& x, const PlotAxis& y, const Box& box) {
  if (series.points.empty()) return {box.right, y.at(series.constant->value)};
  const auto spot_of = [&](const auto& point) { return Spot{x.at(point.x), y.at(point.y.value)}; };
  Spot end = spot_of(series.points.back());
  for (std::size_t i = series.points.size(); end.x > box.right && i-- > 1;) {
    const Spot before = spot_of(series.points[i - 1]);
    if (before.x <= box.right) {
      const double share = (box.right - before.x) / (end.x - before.x);
      return {box.right, before.y + share * (end.y - before.y)};
    }
    end = before;
  }
  return {std::min(end.x, box.right), end.y};
}

// Beside the ends of the lines, moved apart where they would overlap, in the order of the ends.
void draw_direct_labels(Picture& picture, const SeriesPanel& panel, const PlotAxis& x, const PlotAxis& y,
                        const Box& box) {
  struct End {
    const Series* series;
    double from_x, from_y, y;
  };
  std::vector<End> ends;
  for (const Series& series : panel.series) {
    const Spot end = end_of(series, x, y, box);
    const double level = std::clamp(end.y, box.top, box.bottom);
    ends.push_back({&series, end.x, level, level});
  }
  std::stable_sort(ends.begin(), ends.end(), [](const End& a, const End& b) { return a.y < b.y; });
  for (std::size_t i = 1; i < ends.size(); ++i) ends[i].y = std::max(ends[i].y, ends[i - 1].y + kLabelLine);
  double limit = box.bottom;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    end->y = std::min(end->y, limit);
    limit = end->y - kLabelLine;
  }
  for (const End& end : ends) {
    picture.add(
        Shape{.points = {{end.from_x + 5, end.from_y}, {box.right + 4, end.from_y}, {box.right + kLeader, end.y}},
              .stroke = Stroke{.color = end.series->style.color, .width = 0.7}});
    draw_mark(picture, box.right + kLeader + 6, end.y, end.series->style, 7);
    picture.add(Text{.x = box.right + kLeader + 14, .y = end.y, .text = end.series->label});
  }
}

FrameOptions frame_options(const PlotPlan& plan, const SeriesChart& chart, const PlotAxis& y, bool direct) {
  FrameOptions options;
  place_panels(options, chart.panels, plan.facet, plan.labels);
  const std::size_t panels = chart.panels.size();
  const PanelSize size = panels == 1 ? kOne : panels < kManyPanels ? kSeveral : kMany;
  options.panel_width = size.width;
  options.panel_height = size.height;
  options.left = widest_tick(y.ticks(6)) + 14;
  options.x_label = x_label_of(plan, chart.x_unit);
  options.y_label = default_label(plan, plan.y_label, chart.unit);
  if (direct) {
    double widest = 0;
    for (const LegendEntry& entry : chart.legend) widest = std::max(widest, text_width(entry.label, kTextSize));
    options.right = kLeader + 14 + widest + 8;
  }
  return options;
}

// The reference lines; one at a category has that one's place.
std::vector<ReferenceLine> placed_lines(const PlotPlan& plan, const SeriesChart& chart,
                                        std::vector<std::string>& notes) {
  std::vector<ReferenceLine> lines = reference_lines(plan);
  for (ReferenceLine& line : lines) {
    if (!line.x) continue;
    const std::string value = shortest(*line.x);
    line.x = chart.places.at(value);
    if (!line.x) notes.push_back(fmt::format("There is no x of {} to draw a line at.", value));
  }
  std::erase_if(lines, [](const ReferenceLine& line) { return !line.x && !line.y; });
  return lines;
}

void draw_lines(Picture& picture, const std::vector<ReferenceLine>& lines, const Box& box, const PlotAxis& x,
                const PlotAxis& y) {
  LabelPlacer placer(box);
  for (const ReferenceLine& line : lines) {
    if (line.x) draw_upright_line(picture, box, x.at(*line.x), line.label, placer);
    if (line.y) draw_level_line(picture, box, y.at(*line.y), line.label, placer);
  }
}

}  // namespace

Drawing draw_curve(const PlotPlan& plan, const RowTable& rows, const PaperValues& paper) {
  const SeriesChart chart = make_series_chart(plan, rows, paper, XKind::kAsItIs);
  Drawing drawing;
  drawing.notes = chart.notes;
  if (chart.panels.empty()) {
    drawing.empty = no_rows(plan.measure);
    return drawing;
  }
  Range y_all = range_of(chart, plan.y_scale, false);
  Range x_all = range_of(chart, plan.x_scale, true);
  const std::vector<ReferenceLine> lines = placed_lines(plan, chart, drawing.notes);
  for (const ReferenceLine& line : lines) line.x ? x_all.add(*line.x) : y_all.add(*line.y);
  const auto x_range = plan.x_range.value_or(x_all.padded(0.03));
  const PlotAxis y_axis(plan.y_scale, plan.y_range.value_or(y_all.padded(0.05)), {1, 0});
  const bool direct = chart.panels.size() == 1 && !chart.legend.empty() && chart.legend.size() <= kDirectLabels;
  Picture& picture = drawing.picture;
  Frame frame(picture, frame_options(plan, chart, y_axis, direct));
  for (std::size_t p = 0; p < chart.panels.size(); ++p) {
    const Box box = frame.panel(p);
    const PlotAxis x(plan.x_scale, x_range, {box.left, box.right});
    const PlotAxis y = y_axis.placed({box.bottom, box.top});
    frame.draw_x_axis(p, x, x_ticks(plan, chart, x), GridLines::kNo);
    frame.draw_y_axis(p, y, y.ticks(box.height() > 150 ? 6 : 3));
    frame.draw_border(p);
    draw_lines(picture, lines, box, x, y);
    const std::optional<Box> clip = plan.x_range || plan.y_range ? std::optional<Box>(box) : std::nullopt;
    const auto& all = chart.panels[p].series;
    for (const Series& series : all) draw_spread(picture, series, x, y, clip, chart.places.categories);
    for (std::size_t s = 0; s < all.size(); ++s) draw_line(picture, all[s], x, y, clip, s);
    if (direct) draw_direct_labels(picture, chart.panels[p], x, y, box);
  }
  if (!direct) draw_legend(picture, chart.legend, LegendMark::kLine);
  explain_paper(chart, picture);
  return drawing;
}

}  // namespace kv
