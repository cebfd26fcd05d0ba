#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <limits>

#include "harness/report/frame.h"
#include "harness/report/label_placer.h"
#include "harness/report/plot_kinds.h"
#include "harness/report/plot_parts.h"

// The roofline (Williams, Waterman and Patterson 2009): what a kernel reaches over its work per byte, on logarithmic
// axes, below what the memory and the arithmetic of the device allow.

namespace kv {
namespace {

constexpr double kWidth = 760, kHeight = 460;
constexpr double kAbove = 11;  // from a ceiling to its text

struct Dot {
  std::string series, label;
  Style style;
  double x = 0, y = 0;
};

struct Roof {
  double slope = 0;  // work per second = slope · work per byte
  double flat = 0;
  double ridge() const { return flat / slope; }
  double at(double x) const { return std::min(slope * x, flat); }
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
  SeriesStyles styles(plan.series);
  const auto split = static_cast<std::ptrdiff_t>(plan.series.size());
  for (const Key& key : across.keys) {
    const auto other = up.cells.find(key);
    const Cell& cell = across.cells.at(key);
    if (!cell.estimate || other == up.cells.end() || !other->second.estimate) continue;
    Dot dot{.series = label_of(plan.labels, plan.series, Key(key.begin(), key.begin() + split)),
            .label = label_of(plan.labels, plan.label, Key(key.begin() + split, key.end())),
            .style = {},
            .x = cell.estimate->value,
            .y = other->second.estimate->value};
    if (dot.x <= 0 || dot.y <= 0) continue;  // no place on a logarithmic axis
    dot.style = styles.of(Key(key.begin(), key.begin() + split));
    find_or_add(
        legend, [&](const LegendEntry& e) { return e.label == dot.series; }, LegendEntry{dot.series, dot.style});
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

// Ranges with room for the roof's bend and all points.
std::array<std::array<double, 2>, 2> ranges_of(const std::vector<Dot>& dots, const Roof& roof) {
  std::array<double, 2> x = {roof.ridge() / 2, roof.ridge() * 2}, y = {roof.flat, roof.flat};
  for (const Dot& dot : dots) {
    x = {std::min(x[0], dot.x), std::max(x[1], dot.x)};
    y = {std::min(y[0], dot.y), std::max(y[1], dot.y)};
  }
  return {{{x[0] / 2, x[1] * 2}, {y[0] / 2, y[1] * 1.8}}};
}

void draw_roof(Picture& picture, LabelPlacer& placer, const PlotAxis& x, const PlotAxis& y, const Roof& roof,
               const Box& box, const std::string& slope_text, const std::string& flat_text) {
  const double ridge_x = x.at(roof.ridge()), flat_y = y.at(roof.flat);
  const double left = std::max(box.left, x.at(y.range()[0] / roof.slope));  // where the slope comes into sight
  const double left_y = y.at(roof.at(x.value_at(left)));
  picture.add(Shape{.points = {{left, left_y}, {ridge_x, flat_y}, {box.right, flat_y}},
                    .stroke = Stroke{.color = kQuiet, .width = 1.6}});
  for (double pixel = left; pixel <= box.right; pixel += 2) {
    const double level = y.at(roof.at(x.value_at(pixel)));
    placer.occupy({pixel - 1.5, level - 1.5, pixel + 1.5, level + 1.5});
  }
  const double angle = std::atan2(left_y - flat_y, ridge_x - left);
  const Text slope{.x = (left + ridge_x) / 2 - kAbove * std::sin(angle),
                   .y = (left_y + flat_y) / 2 - kAbove * std::cos(angle),
                   .text = slope_text,
                   .anchor = Anchor::kMiddle,
                   .size = LabelPlacer::kSize,
                   .degrees = angle * 180 / std::acos(-1.0),
                   .color = kQuiet};
  const Text flat{.x = box.right - 6,
                  .y = flat_y - kAbove,
                  .text = flat_text,
                  .anchor = Anchor::kEnd,
                  .size = LabelPlacer::kSize,
                  .color = kQuiet};
  for (const Text& text : {slope, flat}) picture.add(text);
  placer.occupy(text_box(flat));
  // The slanted text takes its line, not the box around it, which is mostly empty.
  const double half = text_width(slope_text, LabelPlacer::kSize) / 2;
  for (double along = -half; along <= half; along += 4) {
    const double at_x = slope.x + along * std::cos(angle), at_y = slope.y - along * std::sin(angle);
    placer.occupy({at_x - 6, at_y - 6, at_x + 6, at_y + 6});
  }
}

// Returns how many found no room.
int draw_labels(Picture& picture, LabelPlacer& placer, const PlotAxis& x, const PlotAxis& y,
                const std::vector<Dot>& dots) {
  int left_out = 0;
  for (const Dot& dot : dots) {
    const auto box = placer.place(x.at(dot.x), y.at(dot.y), dot.label);
    if (!box) {
      ++left_out;
      continue;
    }
    picture.add(Text{.x = box->left,
                     .y = (box->top + box->bottom) / 2,
                     .text = dot.label,
                     .size = LabelPlacer::kSize,
                     .color = kQuiet});
  }
  return left_out;
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
  const auto [x_range, y_range] = ranges_of(dots, roof);
  const auto axis_label = [&](const std::string& given, std::size_t i) {
    return given.empty() ? axis_name(plan, plan.measure.metrics[i]) : given;
  };
  Picture& picture = drawing.picture;
  Frame frame(picture, {.grid = {.places = {0}},
                        .panel_width = kWidth,
                        .panel_height = kHeight,
                        .left = 50,
                        .x_label = axis_label(plan.x_label, 0),
                        .y_label = axis_label(plan.y_label, 1)});
  const Box box = frame.panel(0);
  const PlotAxis x(Scale::kLog10, x_range, {box.left, box.right}), y(Scale::kLog10, y_range, {box.bottom, box.top});
  frame.draw_x_axis(0, x, x.ticks(10));
  frame.draw_y_axis(0, y, y.ticks(10));
  frame.draw_border(0);
  LabelPlacer placer(box);
  for (const Dot& dot : dots) placer.occupy_point(x.at(dot.x), y.at(dot.y));
  draw_roof(picture, placer, x, y, roof, box, ceiling_text(plan, plan.ceilings[0], *memory),
            ceiling_text(plan, plan.ceilings[1], *arithmetic));
  for (const Dot& dot : dots) draw_mark(picture, x.at(dot.x), y.at(dot.y), dot.style);
  const int left_out = plan.label.empty() ? 0 : draw_labels(picture, placer, x, y, dots);
  draw_legend(picture, legend, LegendMark::kPoint);
  if (left_out > 0) drawing.notes.push_back(fmt::format("{} labels found no room and are left out.", left_out));
  return drawing;
}

}  // namespace kv
