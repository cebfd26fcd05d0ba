#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "harness/report/pile.h"
#include "harness/report/plot_kinds.h"
#include "harness/report/plot_parts.h"
#include "harness/report/reference_lines.h"
#include "harness/report/series_chart.h"

// Values of categories, lying down so that labels can be read: a row a category with a thin bar from the reference (1
// of a ratio, else 0), a dot, and the interval. Many series are rows, sorted by value and labelled there, with a panel
// a value of x; few series share the row of their x, told apart by a legend.

namespace kv {
namespace {

constexpr std::size_t kFewSeries = 4, kFewColumns = 5;
constexpr double kRowLine = 19, kSharedLine = 9, kWidestLabel = 190;

struct Dot {
  std::size_t row = 0;
  double offset = 0;  // of a row's height
  Style style;
  Estimate value;
  std::optional<double> paper{};
};

struct DotPanel {
  Key facet;
  std::vector<Dot> dots{};
};

struct DotChart {
  std::vector<std::string> rows;  // labels
  std::vector<std::string> facet_columns;
  std::vector<DotPanel> panels;
  double row_height = kRowLine;
  bool legend = false;
};

std::optional<double> paper_at(const Series& series, double x) {
  for (const auto& [place, value] : series.paper) {
    if (place == x) return value;
  }
  return std::nullopt;
}

// A panel a facet and value of x, where few values make the columns of the grid.
DotChart rows_of_series(const PlotPlan& plan, const SeriesChart& chart) {
  DotChart out;
  for (const LegendEntry& entry : chart.legend) out.rows.push_back(entry.label);
  const bool x_last = chart.places.labels.size() <= kFewColumns;
  out.facet_columns = plan.facet;
  out.facet_columns.insert(x_last ? out.facet_columns.end() : out.facet_columns.begin(), plan.x);
  for (const SeriesPanel& panel : chart.panels) {
    for (std::size_t x = 0; x < chart.places.labels.size(); ++x) {
      Key facet = panel.facet;
      facet.insert(x_last ? facet.end() : facet.begin(), chart.places.labels[x]);
      DotPanel dots{facet};
      for (const Series& series : panel.series) {
        const auto row = std::find(out.rows.begin(), out.rows.end(), series.label) - out.rows.begin();
        for (const SeriesPoint& point : series.points) {
          if (point.x != static_cast<double>(x)) continue;
          dots.dots.push_back({static_cast<std::size_t>(row), 0, series.style, point.y, paper_at(series, point.x)});
        }
      }
      if (!dots.dots.empty()) out.panels.push_back(std::move(dots));
    }
  }
  return out;
}

DotChart rows_of_x(const PlotPlan& plan, const SeriesChart& chart) {
  DotChart out{.rows = {}, .facet_columns = plan.facet, .panels = {}, .legend = !chart.legend.empty()};
  for (const std::string& value : chart.places.labels) out.rows.push_back(label_of(plan.labels, value));
  const double count = std::max<double>(1, static_cast<double>(chart.legend.size()));
  out.row_height = std::max(kRowLine, kSharedLine * count + 8);
  const double step = kSharedLine / out.row_height;
  for (const SeriesPanel& panel : chart.panels) {
    DotPanel dots{panel.facet};
    for (const Series& series : panel.series) {
      const auto rank = std::find_if(chart.legend.begin(), chart.legend.end(),
                                     [&](const LegendEntry& entry) { return entry.label == series.label; }) -
                        chart.legend.begin();
      const double offset = chart.legend.empty() ? 0 : (static_cast<double>(rank) - (count - 1) / 2) * step;
      for (const SeriesPoint& point : series.points) {
        Style style = series.style;
        if (chart.legend.empty() && plan.x == "policy") {
          style = style_of_name(chart.places.labels[static_cast<std::size_t>(point.x)]);
        }
        dots.dots.push_back({static_cast<std::size_t>(point.x), offset, style, point.y, paper_at(series, point.x)});
      }
    }
    out.panels.push_back(std::move(dots));
  }
  return out;
}

// The largest mean first; rows named by numbers keep their order.
void sort_rows(DotChart& chart) {
  const bool numbers =
      std::all_of(chart.rows.begin(), chart.rows.end(), [](const std::string& row) { return parse_number(row); });
  if (numbers) return;
  std::vector<Sum> sums(chart.rows.size());
  for (const DotPanel& panel : chart.panels) {
    for (const Dot& dot : panel.dots) sums[dot.row].add(dot.value.value);
  }
  std::vector<std::size_t> order(chart.rows.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto mean = [&](std::size_t i) { return sums[i].count == 0 ? 0 : sums[i].total / sums[i].count; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return mean(a) > mean(b); });
  std::vector<std::string> rows;
  std::vector<std::size_t> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    rows.push_back(chart.rows[order[i]]);
    place[order[i]] = i;
  }
  chart.rows = rows;
  for (DotPanel& panel : chart.panels) {
    for (Dot& dot : panel.dots) dot.row = place[dot.row];
  }
}

std::array<double, 2> value_range(const PlotPlan& plan, const DotChart& chart, double base) {
  if (plan.y_range) return *plan.y_range;
  Range all(plan.y_scale);
  all.add(base);
  for (const ReferenceLine& line : plan.references) all.add(*line.y);
  for (const DotPanel& panel : chart.panels) {
    for (const Dot& dot : panel.dots) {
      all.add(dot.value);
      if (dot.paper) all.add(*dot.paper);
    }
  }
  std::array<double, 2> range = all.padded(0.05);
  const auto bare = all.padded(0);
  if (plan.y_scale == Scale::kLinear && base == 0 && bare[0] == 0) range[0] = 0;
  return range;
}

void draw_dot(Picture& picture, const Dot& dot, const PlotAxis& axis, const Box& box, double base, double row_height,
              const std::optional<Box>& clip) {
  const double y = box.top + (static_cast<double>(dot.row) + 0.5 + dot.offset) * row_height;
  const double from = std::clamp(axis.at(base), box.left, box.right);
  picture.add(Shape{.points = {{from, y}, {axis.at(dot.value.value), y}},
                    .stroke = Stroke{.color = dot.style.color, .width = 1},
                    .clip = clip});
  if (dot.value.interval && dot.value.interval->low < dot.value.interval->high) {
    const double low = axis.at(dot.value.interval->low), high = axis.at(dot.value.interval->high);
    picture.add(
        Shape{.points = {{low, y}, {high, y}}, .stroke = Stroke{.color = dot.style.color, .width = 3}, .clip = clip});
  }
  const auto inside = [&](double x) { return x >= box.left - 1 && x <= box.right + 1; };
  if (dot.paper && inside(axis.at(*dot.paper))) {
    Style ring = dot.style;
    ring.hollow = true;
    draw_mark(picture, axis.at(*dot.paper), y, ring, 10);
  }
  if (inside(axis.at(dot.value.value))) draw_mark(picture, axis.at(dot.value.value), y, dot.style, 7.5);
}

}  // namespace

Drawing draw_bars(const PlotPlan& plan, const RowTable& rows, const PaperValues& paper) {
  const SeriesChart series = make_series_chart(plan, rows, paper, XKind::kCategories);
  Drawing drawing;
  drawing.notes = series.notes;
  if (series.panels.empty()) {
    drawing.empty = no_rows(plan.measure);
    return drawing;
  }
  const std::size_t count = series.legend.size(), places = series.places.labels.size();
  DotChart chart = count > kFewSeries || count > places ? rows_of_series(plan, series) : rows_of_x(plan, series);
  sort_rows(chart);
  FrameOptions options{.left = 14, .x_label = default_label(plan, plan.y_label, series.unit)};
  place_panels(options, chart.panels, chart.facet_columns, plan.labels);
  for (std::string& row : chart.rows) {
    row = elide(row, kWidestLabel, kTextSize);
    options.left = std::max(options.left, text_width(row, kTextSize) + 16);
  }
  options.panel_width = chart.panels.size() == 1 ? 460 : options.grid.columns <= 3 ? 230 : 170;
  options.panel_height = chart.row_height * static_cast<double>(chart.rows.size());
  Picture& picture = drawing.picture;
  Frame frame(picture, options);
  const double base = nothing_done(plan).value_or(0);
  const std::vector<ReferenceLine> lines = reference_lines(plan);
  const auto range = value_range(plan, chart, base);
  for (std::size_t p = 0; p < chart.panels.size(); ++p) {
    const Box box = frame.panel(p);
    const PlotAxis axis(plan.y_scale, range, {box.left, box.right});
    const std::optional<Box> clip = plan.y_range ? std::optional<Box>(box) : std::nullopt;
    frame.draw_x_axis(p, axis, axis.ticks(static_cast<int>(box.width() / 60)));
    frame.draw_border(p);
    LabelPlacer placer(box);
    for (const ReferenceLine& line : lines) draw_upright_line(picture, box, axis.at(*line.y), line.label, placer);
    for (std::size_t r = 0; r < chart.rows.size() && frame.first_in_row(p); ++r) {
      picture.add(Text{.x = box.left - 8,
                       .y = box.top + (static_cast<double>(r) + 0.5) * chart.row_height,
                       .text = chart.rows[r],
                       .anchor = Anchor::kEnd});
    }
    for (const Dot& dot : chart.panels[p].dots) draw_dot(picture, dot, axis, box, base, chart.row_height, clip);
  }
  if (chart.legend) draw_legend(picture, series.legend, LegendMark::kPoint);
  explain_paper(series, picture);
  return drawing;
}

}  // namespace kv
