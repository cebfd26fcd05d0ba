#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <limits>

#include "harness/report/canvas.h"
#include "harness/report/cells.h"
#include "harness/report/escape.h"
#include "harness/report/plot_parts.h"

// The roofline (Williams, Waterman and Patterson 2009): what a kernel reaches over its work per byte, on logarithmic
// axes, below what the memory and the arithmetic of the device allow.

namespace kv {
namespace {

constexpr PanelSize kPanel = {760, 460};
constexpr double kCharacter = 5.4;  // mean width of a label's characters, pixels
constexpr double kLine = 12;        // height of a label
constexpr double kPoint = 9;        // side of the square that a point needs

struct Dot {
  std::string series, label;
  int style = 1;
  double x = 0, y = 0;
};

struct Roof {
  double slope = 0;  // work per second = slope · work per byte
  double flat = 0;
  double ridge() const { return flat / slope; }
  double at(double x) const { return std::min(slope * x, flat); }
};

struct Box {
  double x = 0, y = 0, width = 0, height = 0;  // centre and size, pixels from the top left of the panel
  bool meets(const Box& other) const {
    return std::abs(x - other.x) * 2 < width + other.width && std::abs(y - other.y) * 2 < height + other.height;
  }
  bool inside_panel() const {
    return x - width / 2 > 2 && x + width / 2 < kPanel.width - 2 && y - height / 2 > 2 &&
           y + height / 2 < kPanel.height - 2;
  }
};

// Between the values of the axes and pixels of the panel.
class Axes {
 public:
  Axes(const std::vector<Dot>& dots, const Roof& roof)
      : x_{roof.ridge() / 2, roof.ridge() * 2}, y_{roof.flat, roof.flat} {
    for (const Dot& dot : dots) {
      x_ = {std::min(x_[0], dot.x), std::max(x_[1], dot.x)};
      y_ = {std::min(y_[0], dot.y), std::max(y_[1], dot.y)};
    }
    x_ = {x_[0] / 2, x_[1] * 2};
    y_ = {y_[0] / 2, y_[1] * 1.8};
  }

  const std::array<double, 2>& x() const { return x_; }
  const std::array<double, 2>& y() const { return y_; }
  double pixel_x(double value) const { return kPanel.width * share(value, x_); }
  double pixel_y(double value) const { return kPanel.height * (1 - share(value, y_)); }
  double value_x(double pixel) const { return x_[0] * std::pow(x_[1] / x_[0], pixel / kPanel.width); }
  double value_y(double pixel) const { return y_[0] * std::pow(y_[1] / y_[0], 1 - pixel / kPanel.height); }

 private:
  static double share(double value, const std::array<double, 2>& range) {
    return std::log(value / range[0]) / std::log(range[1] / range[0]);
  }
  std::array<double, 2> x_, y_;
};

// Finds room for labels: beside, above or below their point, where they meet nothing that is drawn already.
class LabelPlacer {
 public:
  void occupy(const Box& box) { taken_.push_back(box); }

  std::optional<Box> place(double x, double y, const std::string& text) {
    const double width = kCharacter * static_cast<double>(text.size()) + 4;
    const double beside = (width + kPoint) / 2, above = (kLine + kPoint) / 2;
    for (const auto& [dx, dy] : std::array<std::array<double, 2>, 8>{{{beside, 0},
                                                                      {-beside, 0},
                                                                      {0, above},
                                                                      {0, -above},
                                                                      {beside, above},
                                                                      {beside, -above},
                                                                      {-beside, above},
                                                                      {-beside, -above}}}) {
      const Box box{.x = x + dx, .y = y + dy, .width = width, .height = kLine};
      const bool free = box.inside_panel() &&
                        std::none_of(taken_.begin(), taken_.end(), [&](const Box& other) { return box.meets(other); });
      if (!free) continue;
      occupy(box);
      return box;
    }
    return std::nullopt;
  }

 private:
  std::vector<Box> taken_;
};

Cells collect_metric(const PlotPlan& plan, const RowTable& rows, const std::string& metric, const Where& where,
                     const std::vector<std::string>& columns) {
  Measure measure = plan.measure;
  measure.metrics = {metric};
  return collect(rows, {.measure = measure, .where = where, .columns = columns, .intervals = false});
}

std::vector<Dot> find_dots(const PlotPlan& plan, const RowTable& rows, std::vector<LegendEntry>& legend,
                           std::vector<std::string>& notes) {
  std::vector<std::string> columns = plan.series;
  columns.insert(columns.end(), plan.label.begin(), plan.label.end());
  const Cells across = collect_metric(plan, rows, plan.measure.metrics[0], plan.where, columns);
  const Cells up = collect_metric(plan, rows, plan.measure.metrics[1], plan.where, columns);
  std::vector<Dot> dots;
  const auto split = static_cast<std::ptrdiff_t>(plan.series.size());
  for (const Key& key : across.keys) {
    const auto other = up.cells.find(key);
    const Cell& cell = across.cells.at(key);
    if (!cell.estimate || other == up.cells.end() || !other->second.estimate) continue;
    Dot dot{.series = label_of(plan.labels, plan.series, Key(key.begin(), key.begin() + split)),
            .label = label_of(plan.labels, plan.label, Key(key.begin() + split, key.end())),
            .x = cell.estimate->value,
            .y = other->second.estimate->value};
    if (dot.x <= 0 || dot.y <= 0) continue;  // no place on a logarithmic axis
    const int fresh = static_cast<int>(legend.size()) % kStyles + 1;
    dot.style = find_or_add(
                    legend, [&](const LegendEntry& e) { return e.label == dot.series; }, LegendEntry{dot.series, fresh})
                    .style;
    dots.push_back(std::move(dot));
  }
  if (!plan.note.empty()) notes.push_back(plan.note);
  if (!across.averaged.empty()) {
    notes.push_back(fmt::format("Each point is taken over all values of: {}.", fmt::join(across.averaged, ", ")));
  }
  return dots;
}

struct Ceiling {
  double value = 0;
  std::string unit;
};

// The one value of a ceiling's metric; whatever `where` picks, the device is the same.
std::optional<Ceiling> find_ceiling(const PlotPlan& plan, const RowTable& rows, const std::string& metric) {
  const Cells cells = collect_metric(plan, rows, metric, {}, {});
  const auto cell = cells.cells.find(Key{});
  if (cell == cells.cells.end() || !cell->second.estimate || cell->second.estimate->value <= 0) return std::nullopt;
  return Ceiling{cell->second.estimate->value, cell->second.unit};
}

std::string ceiling_text(const PlotPlan& plan, const std::string& metric, const Ceiling& ceiling) {
  return fmt::format("{} {:.3g} {}", axis_name(plan, metric), ceiling.value, ceiling.unit);
}

void draw_roof(Canvas& canvas, Drawing& drawing, const Axes& axes, const Roof& roof, const std::string& slope_text,
               const std::string& flat_text) {
  drawing.data +=
      fmt::format("$roof << EOD\n{0} {1}\n{2} {3}\n{4} {3}\nEOD\n", number(axes.x()[0]), number(roof.at(axes.x()[0])),
                  number(roof.ridge()), number(roof.flat), number(axes.x()[1]));
  const double run = axes.pixel_x(roof.ridge()) - axes.pixel_x(roof.ridge() / 10);
  const double rise = axes.pixel_y(roof.flat / 10) - axes.pixel_y(roof.flat);
  const double angle = std::atan2(rise, run);
  // In the middle of what is seen of the slope, a line's height above it.
  const double left = std::max(0.0, axes.pixel_x(axes.y()[0] / roof.slope));
  const double x = (left + axes.pixel_x(roof.ridge())) / 2;
  const double y = axes.pixel_y(roof.at(axes.value_x(x)));
  canvas.add(fmt::format("set label {} at {},{} center rotate by {:.1f} tc rgb '#404040' font ',9'",
                         quote_gnuplot(slope_text), number(axes.value_x(x - kLine * std::sin(angle))),
                         number(axes.value_y(y - kLine * std::cos(angle))), angle * 180 / std::acos(-1.0)));
  canvas.add(fmt::format("set label {} at {},{} right tc rgb '#404040' font ',9'", quote_gnuplot(flat_text),
                         number(axes.value_x(kPanel.width - 6)),
                         number(axes.value_y(axes.pixel_y(roof.flat) - kLine))));
}

// Returns how many found no room.
int draw_labels(Canvas& canvas, const Axes& axes, const Roof& roof, const std::vector<Dot>& dots) {
  LabelPlacer placer;
  for (const Dot& dot : dots) {
    placer.occupy({.x = axes.pixel_x(dot.x), .y = axes.pixel_y(dot.y), .width = kPoint, .height = kPoint});
  }
  for (double x = 0; x <= kPanel.width; x += 2) {
    placer.occupy({.x = x, .y = axes.pixel_y(roof.at(axes.value_x(x))), .width = 3, .height = 3});
  }
  int left_out = 0;
  for (const Dot& dot : dots) {
    const auto box = placer.place(axes.pixel_x(dot.x), axes.pixel_y(dot.y), dot.label);
    if (!box) {
      ++left_out;
      continue;
    }
    canvas.add(fmt::format("set label {} at {},{} center tc ls {} font ',8'", quote_gnuplot(dot.label),
                           number(axes.value_x(box->x)), number(axes.value_y(box->y)), dot.style));
  }
  return left_out;
}

void draw_dots(Canvas& canvas, Drawing& drawing, const std::vector<LegendEntry>& legend, const std::vector<Dot>& dots) {
  std::vector<std::string> parts = {"$roof using 1:2 with lines lc rgb '#404040' lw 1.6 notitle"};
  for (std::size_t s = 0; s < legend.size(); ++s) {
    drawing.data += fmt::format("$d{} << EOD\n", s);
    for (const Dot& dot : dots) {
      if (dot.series == legend[s].label) drawing.data += fmt::format("{} {}\n", number(dot.x), number(dot.y));
    }
    drawing.data += "EOD\n";
    parts.push_back(fmt::format("$d{} using 1:2 with points ls {} ps 1 notitle", s, legend[s].style));
  }
  canvas.add(fmt::format("plot {}", fmt::join(parts, ", \\\n  ")));
}

}  // namespace

Drawing draw_roofline(const PlotPlan& plan, const RowTable& rows) {
  Drawing drawing;
  std::vector<LegendEntry> legend;
  const std::vector<Dot> dots = find_dots(plan, rows, legend, drawing.notes);
  const auto memory = find_ceiling(plan, rows, plan.ceilings[0]),
             arithmetic = find_ceiling(plan, rows, plan.ceilings[1]);
  if (dots.empty() || !memory || !arithmetic) {
    Measure missing = plan.measure;
    if (!dots.empty()) missing.metrics = {plan.ceilings[memory ? 1 : 0]};
    drawing.empty = no_rows(missing);
    return drawing;
  }
  const Roof roof{.slope = memory->value, .flat = arithmetic->value};
  const Axes axes(dots, roof);
  Canvas canvas(1, kPanel, kPanel, {}, Mark::kPoint, legend);
  canvas.add(define_styles() + "set border 3 lc rgb '#404040'\nset tics nomirror scale 0.5\nset key off");
  canvas.add("set grid xtics ytics lc rgb '#e4e4e4' lt 1 lw 0.7");
  canvas.add(set_log("x", Scale::kLog10) + "; " + set_log("y", Scale::kLog10));
  canvas.add(set_range("x", axes.x()) + "; " + set_range("y", axes.y()));
  const auto axis_label = [&](const std::string& given, std::size_t i) {
    return given.empty() ? axis_name(plan, plan.measure.metrics[i]) : given;
  };
  canvas.panel(0, "", axis_label(plan.x_label, 0), axis_label(plan.y_label, 1));
  draw_roof(canvas, drawing, axes, roof, ceiling_text(plan, plan.ceilings[0], *memory),
            ceiling_text(plan, plan.ceilings[1], *arithmetic));
  const int left_out = plan.label.empty() ? 0 : draw_labels(canvas, axes, roof, dots);
  draw_dots(canvas, drawing, legend, dots);
  canvas.finish(drawing);
  if (left_out > 0) drawing.notes.push_back(fmt::format("{} labels found no room and are left out.", left_out));
  return drawing;
}

}  // namespace kv
