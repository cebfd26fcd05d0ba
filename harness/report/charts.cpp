#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "harness/report/canvas.h"
#include "harness/report/cells.h"
#include "harness/report/escape.h"
#include "harness/report/plot_parts.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr int kMaxPoints = 120;
constexpr int kBins = 100;
constexpr PanelSize kOne = {560, 340};
constexpr PanelSize kSeveral = {300, 230};
constexpr PanelSize kSmall = {150, 110};

struct Point {
  double x = 0;
  Estimate y{};
  Estimate across{};  // a scatter plot's x
};

struct Line {
  std::string label;
  int style = 1;
  std::vector<Point> points;
  std::optional<Estimate> constant;  // the cell without x: a case that the axis does not concern
};

struct Panel {
  std::string title;
  Key facet;
  std::vector<Line> lines;
};

// The places of an x column: numbers, or categories 0, 1, 2 ... in order of appearance.
struct Places {
  bool categories = false;
  std::vector<std::string> labels;  // of categories
  std::vector<double> distinct;     // numbers, ascending

  double at(const std::string& text) const {
    if (!categories) return *parse_number(text);
    return static_cast<double>(std::find(labels.begin(), labels.end(), text) - labels.begin());
  }
};

Places find_places(const std::vector<std::string>& values, bool categories) {
  Places places;
  for (const std::string& value : values) {
    if (value.empty() && !categories) continue;
    if (std::find(places.labels.begin(), places.labels.end(), value) == places.labels.end())
      places.labels.push_back(value);
  }
  places.categories = categories || std::any_of(places.labels.begin(), places.labels.end(),
                                                [](const std::string& label) { return !parse_number(label); });
  if (places.categories) return places;
  for (const std::string& label : places.labels) places.distinct.push_back(*parse_number(label));
  std::sort(places.distinct.begin(), places.distinct.end());
  return places;
}

// Policies keep their style over all plots of a run; other series are numbered as they come.
int style_of(const PlotPlan& plan, const RowTable& rows, const Key& series, std::vector<Key>& seen) {
  if (plan.series == std::vector<std::string>{"policy"}) {
    std::vector<std::string> policies;
    for (const Row& row : rows.rows) {
      if (row.policy == series[0]) break;
      if (std::find(policies.begin(), policies.end(), row.policy) == policies.end()) policies.push_back(row.policy);
    }
    return static_cast<int>(policies.size()) % kStyles + 1;
  }
  find_or_add(
      seen, [&](const Key& key) { return key == series; }, series);
  return static_cast<int>(std::find(seen.begin(), seen.end(), series) - seen.begin()) % kStyles + 1;
}

struct Chart {
  std::vector<Panel> panels;
  Places places;
  std::string unit;
  std::vector<std::string> notes;
  std::vector<LegendEntry> legend;  // in the order of the cases, also where the first panel lacks a series
};

// Bins for a curve with more points than a reader can tell apart; equal widths on the axis as it is drawn.
std::function<std::string(const std::string&)> make_bins(const PlotPlan& plan, const Places& places) {
  if (places.categories || static_cast<int>(places.distinct.size()) <= kMaxPoints) return {};
  const bool log = plan.x_scale != Scale::kLinear && places.distinct.front() > 0;
  const auto warp = [log](double x) { return log ? std::log(x) : x; };
  const double low = warp(places.distinct.front());
  const double width = (warp(places.distinct.back()) - low) / kBins;
  return [=](const std::string& text) {
    const auto x = parse_number(text);
    if (!x) return text;
    const double bin = std::min(std::floor((warp(*x) - low) / width), static_cast<double>(kBins - 1));
    const double center = low + (bin + 0.5) * width;
    return number(log ? std::exp(center) : center);
  };
}

// Only what was drawn, in the order of the cases.
void add_to_legend(Chart& chart, const std::string& label, int style) {
  if (label.empty()) return;
  find_or_add(
      chart.legend, [&](const LegendEntry& e) { return e.label == label; }, LegendEntry{label, style});
}

void drop_unused(Chart& chart) {
  std::erase_if(chart.legend, [&](const LegendEntry& entry) {
    return std::none_of(chart.panels.begin(), chart.panels.end(), [&](const Panel& panel) {
      return std::any_of(panel.lines.begin(), panel.lines.end(),
                         [&](const Line& line) { return line.label == entry.label; });
    });
  });
}

Chart make_chart(const PlotPlan& plan, const RowTable& rows, bool categories) {
  Chart chart;
  std::vector<std::string> columns = {plan.x};
  columns.insert(columns.end(), plan.facet.begin(), plan.facet.end());
  columns.insert(columns.end(), plan.series.begin(), plan.series.end());
  chart.places = find_places(column_values(plan, rows, plan.x), categories);
  const auto bins = make_bins(plan, chart.places);
  const Cells cells = collect(
      rows, {.measure = plan.measure, .where = plan.where, .columns = columns, .intervals = plan.band, .first = bins});
  std::vector<Key> seen;
  const auto facet_end = 1 + static_cast<std::ptrdiff_t>(plan.facet.size());
  for (const Key& key : cells.keys) {
    const Cell& cell = cells.cells.at(key);
    const Key series(key.begin() + facet_end, key.end());
    const std::string label = label_of(plan.labels, plan.series, series);
    const int style = style_of(plan, rows, series, seen);
    add_to_legend(chart, label, style);
    if (!cell.estimate) continue;
    if (!cell.unit.empty()) chart.unit = cell.unit;
    const Key facet(key.begin() + 1, key.begin() + facet_end);
    const std::string title = label_of(plan.labels, plan.facet, facet);
    Panel& panel = find_or_add(
        chart.panels, [&](const Panel& p) { return p.title == title; }, Panel{title, facet, {}});
    Line& line = find_or_add(
        panel.lines, [&](const Line& l) { return l.label == label; }, Line{label, style, {}, {}});
    if (key[0].empty() && !chart.places.categories) {
      line.constant = cell.estimate;
    } else {
      line.points.push_back({.x = chart.places.at(key[0]), .y = *cell.estimate});
    }
  }
  for (Panel& panel : chart.panels) {
    for (Line& line : panel.lines) {
      std::stable_sort(line.points.begin(), line.points.end(),
                       [](const Point& a, const Point& b) { return a.x < b.x; });
    }
  }
  drop_unused(chart);
  note_samples(plan, cells, plan.kind == PlotKind::kBars ? "whiskers" : "band", chart.notes);
  if (bins) chart.notes.push_back(fmt::format("{} points averaged in {} bins.", chart.places.distinct.size(), kBins));
  return chart;
}

// A range over all panels, so that they can be compared, with a little air.
class Range {
 public:
  explicit Range(Scale scale) : log_(scale != Scale::kLinear) {}
  void add(double value) {
    if (log_ && value <= 0) return;
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  void add(const Estimate& estimate) {
    add(estimate.value);
    if (!estimate.interval) return;
    add(estimate.interval->low);
    add(estimate.interval->high);
  }
  std::array<double, 2> padded(double share) const {
    if (low_ > high_) return {log_ ? 0.1 : 0.0, 1.0};
    if (log_) {
      const double factor = low_ == high_ ? 1.2 : std::pow(high_ / low_, share);
      return {low_ / factor, high_ * factor};
    }
    const double air = low_ == high_ ? std::max(std::abs(low_) * 0.1, 1e-6) : (high_ - low_) * share;
    return {low_ - air, high_ + air};
  }

 private:
  bool log_;
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
};

std::string common_settings() {
  return define_styles() +
         "set border 3 lc rgb '#404040'\nset tics nomirror scale 0.5\nset grid ytics lc rgb '#dddddd' lt 1 lw 0.7\nset "
         "key "
         "off\nset datafile missing 'nan'";
}

CategoryTicks x_ticks(const Chart& chart, const PlotPlan& plan, int room) {
  if (chart.places.categories) {
    std::vector<std::string> labels;
    for (const std::string& label : chart.places.labels) labels.push_back(label_of(plan.labels, label));
    return category_ticks("x", labels, 24, room);
  }
  // The values that were run, where they are few and far enough apart to be read.
  const auto& xs = chart.places.distinct;
  if (xs.size() < 2 || xs.size() > 8) return {.command = "set xtics auto"};
  const bool log = plan.x_scale != Scale::kLinear && xs.front() > 0;
  const auto warp = [log](double x) { return log ? std::log(x) : x; };
  for (std::size_t i = 1; i < xs.size(); ++i) {
    if ((warp(xs[i]) - warp(xs[i - 1])) / (warp(xs.back()) - warp(xs.front())) * room < 44)
      return {.command = "set xtics auto"};
  }
  std::string ticks;
  for (const double x : xs) ticks += (ticks.empty() ? "" : ", ") + number(x);
  return {.command = "set xtics (" + ticks + ")"};
}

// A point a case: every combination of policy, data, model and axes.
Chart make_scatter(const PlotPlan& plan, const RowTable& rows) {
  std::vector<std::string> columns = plan.facet;
  columns.insert(columns.end(), plan.series.begin(), plan.series.end());
  const auto label_size = static_cast<std::ptrdiff_t>(columns.size());
  std::vector<std::string> rest = {"policy", "data", "model"};
  rest.insert(rest.end(), rows.axes.begin(), rows.axes.end());
  for (const std::string& column : rest) {
    if (std::find(columns.begin(), columns.end(), column) == columns.end()) columns.push_back(column);
  }
  std::array<Measure, 2> measures = {plan.measure, plan.measure};
  for (std::size_t i = 0; i < 2; ++i) measures[i].metrics = {plan.measure.metrics[i]};
  const Cells across =
      collect(rows, {.measure = measures[0], .where = plan.where, .columns = columns, .intervals = plan.band});
  const Cells up =
      collect(rows, {.measure = measures[1], .where = plan.where, .columns = columns, .intervals = plan.band});
  Chart chart;
  std::vector<Key> seen;
  const auto facet_size = static_cast<std::ptrdiff_t>(plan.facet.size());
  for (const Key& key : across.keys) {
    const auto other = up.cells.find(key);
    const Cell& cell = across.cells.at(key);
    if (!cell.estimate || other == up.cells.end() || !other->second.estimate) continue;
    const Key facet(key.begin(), key.begin() + facet_size);
    const std::string title = label_of(plan.labels, plan.facet, facet);
    const Key series(key.begin() + facet_size, key.begin() + label_size);
    const std::string label = label_of(plan.labels, plan.series, series);
    const int style = style_of(plan, rows, series, seen);
    add_to_legend(chart, label, style);
    Panel& panel = find_or_add(
        chart.panels, [&](const Panel& p) { return p.title == title; }, Panel{title, facet, {}});
    Line& line = find_or_add(
        panel.lines, [&](const Line& l) { return l.label == label; }, Line{label, style, {}, {}});
    line.points.push_back({.x = 0, .y = *other->second.estimate, .across = *cell.estimate});
  }
  note_samples(plan, up, "whiskers", chart.notes);
  return chart;
}

// Beside tick labels of more than four digits the axis label needs room of its own.
int left_margin(const std::array<double, 2>& y) {
  constexpr int kDigit = 9;
  const double largest = std::max({std::abs(y[0]), std::abs(y[1]), 1.0});
  const int digits = static_cast<int>(std::log10(largest)) + 1;
  return Margins().left + kDigit * std::clamp(digits - 4, 0, 4);
}

}  // namespace

Drawing draw_curve(const PlotPlan& plan, const RowTable& rows) {
  Chart chart = make_chart(plan, rows, false);
  Drawing drawing;
  drawing.notes = chart.notes;
  if (chart.panels.empty()) {
    drawing.empty = no_rows(plan.measure);
    return drawing;
  }
  Range x_all(plan.x_scale), y_all(plan.y_scale);
  for (const Panel& panel : chart.panels) {
    for (const Line& line : panel.lines) {
      if (line.constant) y_all.add(*line.constant);
      for (const Point& point : line.points) {
        x_all.add(point.x);
        y_all.add(point.y);
      }
    }
  }
  const auto x_range = plan.x_range.value_or(x_all.padded(0.03));
  const auto y_range = plan.y_range.value_or(y_all.padded(0.05));
  std::vector<Key> facets;
  for (const Panel& panel : chart.panels) facets.push_back(panel.facet);
  const PanelGrid grid = arrange_panels(chart.places.categories ? std::vector<Key>() : facets);
  const bool small = grid.columns > 0;
  const PanelSize several = small ? kSmall : kSeveral;
  const CategoryTicks ticks = x_ticks(chart, plan, chart.panels.size() == 1 ? kOne.width : several.width);
  Canvas canvas(small ? grid.cells : static_cast<int>(chart.panels.size()), kOne, several,
                {.left = left_margin(y_range), .tick_labels = ticks.height, .columns = grid.columns}, Mark::kLine,
                chart.legend);
  canvas.add(common_settings());
  canvas.add(set_log("x", plan.x_scale) + "; " + set_log("y", plan.y_scale));
  canvas.add(set_range("x", x_range) + "; " + set_range("y", y_range));
  canvas.add(ticks.command);
  for (std::size_t p = 0; p < chart.panels.size(); ++p) {
    canvas.panel(small ? grid.places[p] : static_cast<int>(p), chart.panels[p].title, x_label_of(plan),
                 default_label(plan, plan.y_label, chart.unit));
    std::vector<std::string> bands, lines;
    for (std::size_t l = 0; l < chart.panels[p].lines.size(); ++l) {
      const Line& line = chart.panels[p].lines[l];
      if (line.constant) {
        lines.push_back(fmt::format("{} with lines ls {} notitle", number(line.constant->value), line.style));
      }
      if (line.points.empty()) continue;
      const std::string block = fmt::format("$d{}_{}", p, l);
      drawing.data += block + " << EOD\n";
      bool banded = false;
      for (const Point& point : line.points) {
        const Interval band = point.y.interval.value_or(Interval{point.y.value, point.y.value});
        banded = banded || point.y.interval;
        drawing.data +=
            fmt::format("{} {} {} {}\n", number(point.x), number(point.y.value), number(band.low), number(band.high));
      }
      drawing.data += "EOD\n";
      if (banded && chart.places.categories) {
        bands.push_back(fmt::format("{} using 1:2:3:4 with yerrorbars ls {} dt 1 notitle", block, line.style));
      } else if (banded && line.points.size() > 1) {
        bands.push_back(fmt::format("{} using 1:3:4 with filledcurves ls {} fs transparent solid 0.15 noborder notitle",
                                    block, line.style));
      } else if (banded) {
        bands.push_back(fmt::format("{} using 1:2:3:4 with yerrorbars ls {} notitle", block, line.style));
      }
      // Markers apart enough to be told apart, at another phase for each line; small panels have little room.
      const std::size_t markers = small ? 4 : 12;
      const auto every = std::max<std::size_t>(1, line.points.size() / markers);
      lines.push_back(fmt::format("{} using 1:2 with lines ls {} notitle", block, line.style));
      lines.push_back(fmt::format("{} using 1:2 every {}::{} with points ls {} notitle", block, every,
                                  every == 1 ? 0 : l % every, line.style));
    }
    bands.insert(bands.end(), lines.begin(), lines.end());
    canvas.add(fmt::format("plot {}", fmt::join(bands, ", \\\n  ")));
  }
  canvas.finish(drawing);
  return drawing;
}

Drawing draw_bars(const PlotPlan& plan, const RowTable& rows) {
  Chart chart = make_chart(plan, rows, true);
  Drawing drawing;
  drawing.notes = chart.notes;
  if (chart.panels.empty()) {
    drawing.empty = no_rows(plan.measure);
    return drawing;
  }
  Range y_all(plan.y_scale);
  y_all.add(0.0);  // bars are compared by their length
  std::vector<std::string> series;
  for (const LegendEntry& entry : chart.legend) series.push_back(entry.label);
  if (series.empty()) series.emplace_back();
  for (const Panel& panel : chart.panels) {
    for (const Line& line : panel.lines) {
      for (const Point& point : line.points) y_all.add(point.y);
    }
  }
  std::array<double, 2> y_range = y_all.padded(0.06);
  if (plan.y_scale == Scale::kLinear) {
    if (y_range[0] < 0 && y_all.padded(0)[0] == 0) y_range[0] = 0;
    if (y_range[1] > 0 && y_all.padded(0)[1] == 0) y_range[1] = 0;
  }
  y_range = plan.y_range.value_or(y_range);
  const double width = 0.8 / static_cast<double>(series.size());
  const CategoryTicks ticks = x_ticks(chart, plan, chart.panels.size() == 1 ? kOne.width : kSeveral.width);
  Canvas canvas(static_cast<int>(chart.panels.size()), kOne, kSeveral,
                {.left = left_margin(y_range), .tick_labels = ticks.height}, Mark::kBox, chart.legend);
  canvas.add(common_settings());
  canvas.add(set_log("y", plan.y_scale));
  canvas.add(set_range("x", {-0.6, static_cast<double>(chart.places.labels.size()) - 0.4}) + "; " +
             set_range("y", y_range));
  canvas.add(ticks.command);
  canvas.add(fmt::format("set boxwidth {:.4f}", width * 0.92));
  for (std::size_t p = 0; p < chart.panels.size(); ++p) {
    canvas.panel(static_cast<int>(p), chart.panels[p].title, x_label_of(plan),
                 default_label(plan, plan.y_label, chart.unit));
    std::vector<std::string> parts;
    for (std::size_t l = 0; l < chart.panels[p].lines.size(); ++l) {
      const Line& line = chart.panels[p].lines[l];
      const auto rank = std::find(series.begin(), series.end(), line.label) - series.begin();
      const double offset = (static_cast<double>(rank) - (static_cast<double>(series.size()) - 1) / 2) * width;
      const std::string block = fmt::format("$d{}_{}", p, l);
      drawing.data += block + " << EOD\n";
      for (const Point& point : line.points) {
        const Interval bar = point.y.interval.value_or(Interval{point.y.value, point.y.value});
        drawing.data += fmt::format("{} {} {} {}\n", number(point.x + offset), number(point.y.value), number(bar.low),
                                    number(bar.high));
      }
      drawing.data += "EOD\n";
      parts.push_back(
          fmt::format("{} using 1:2 with boxes ls {} dt 1 lw 1 {} notitle", block, line.style, fill_style(line.style)));
      if (plan.band) {
        // Not yerrorbars, which blank a disc in the bar around their (absent) point.
        parts.push_back(fmt::format(
            "{} using 1:3:(0):($4-$3) with vectors heads size graph 0.006,90 lc rgb '#202020' lw 1.2 notitle", block));
      }
    }
    canvas.add(fmt::format("plot {}", fmt::join(parts, ", \\\n  ")));
  }
  canvas.finish(drawing);
  return drawing;
}

Drawing draw_scatter(const PlotPlan& plan, const RowTable& rows) {
  Chart chart = make_scatter(plan, rows);
  Drawing drawing;
  drawing.notes = chart.notes;
  if (chart.panels.empty()) {
    drawing.empty = no_rows(plan.measure);
    return drawing;
  }
  Range x_all(plan.x_scale), y_all(plan.y_scale);
  for (const Panel& panel : chart.panels) {
    for (const Line& line : panel.lines) {
      for (const Point& point : line.points) {
        x_all.add(point.across);
        y_all.add(point.y);
      }
    }
  }
  Canvas canvas(static_cast<int>(chart.panels.size()), kOne, kSeveral, {.left = left_margin(y_all.padded(0.05))},
                Mark::kPoint, chart.legend);
  canvas.add(common_settings());
  canvas.add(set_log("x", plan.x_scale) + "; " + set_log("y", plan.y_scale));
  canvas.add(set_range("x", plan.x_range.value_or(x_all.padded(0.05))));
  canvas.add(set_range("y", plan.y_range.value_or(y_all.padded(0.05))));
  for (std::size_t p = 0; p < chart.panels.size(); ++p) {
    const auto axis_label = [&](const std::string& given, std::size_t i) {
      return given.empty() ? axis_name(plan, plan.measure.metrics[i]) : given;
    };
    canvas.panel(static_cast<int>(p), chart.panels[p].title, axis_label(plan.x_label, 0), axis_label(plan.y_label, 1));
    std::vector<std::string> parts;
    for (std::size_t l = 0; l < chart.panels[p].lines.size(); ++l) {
      const Line& line = chart.panels[p].lines[l];
      const std::string block = fmt::format("$d{}_{}", p, l);
      drawing.data += block + " << EOD\n";
      for (const Point& point : line.points) {
        const auto& [x, y] = std::tie(point.across, point.y);
        const Interval dx = x.interval.value_or(Interval{x.value, x.value});
        const Interval dy = y.interval.value_or(Interval{y.value, y.value});
        drawing.data += fmt::format("{} {} {} {} {} {}\n", number(x.value), number(y.value), number(dx.low),
                                    number(dx.high), number(dy.low), number(dy.high));
      }
      drawing.data += "EOD\n";
      if (plan.band) {
        parts.push_back(
            fmt::format("{} using 1:2:3:4:5:6 with xyerrorbars ls {} dt 1 lw 0.8 notitle", block, line.style));
      }
      parts.push_back(fmt::format("{} using 1:2 with points ls {} ps 1 notitle", block, line.style));
    }
    canvas.add(fmt::format("plot {}", fmt::join(parts, ", \\\n  ")));
  }
  canvas.finish(drawing);
  return drawing;
}

}  // namespace kv
