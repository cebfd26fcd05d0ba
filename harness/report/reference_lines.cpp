#include "harness/report/reference_lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/rows.h"

namespace kv {
namespace {

constexpr double kEndRoom = 2, kTopRoom = 10;

Stroke dashed() { return {.color = kQuiet, .width = 1.2, .dashes = {4, 3}}; }

void draw_label(Picture& picture, double x, double y, const std::string& label, LabelPlacer& placer) {
  if (label.empty()) return;
  const auto place = placer.place(x, y, label);
  if (!place) return;
  picture.add(Text{.x = place->left,
                   .y = (place->top + place->bottom) / 2,
                   .text = label,
                   .size = LabelPlacer::kSize,
                   .color = kQuiet});
}

}  // namespace

std::optional<double> nothing_done(const PlotPlan& plan) {
  if (plan.kind == PlotKind::kScatter) return std::nullopt;
  const Measure& measure = plan.measure;
  const bool ratio = !measure.ratio.empty() || (measure.metrics.size() == 1 && measure.metrics[0].ends_with("_ratio"));
  return ratio ? std::optional<double>(1) : std::nullopt;
}

std::vector<ReferenceLine> reference_lines(const PlotPlan& plan) {
  std::vector<ReferenceLine> lines = plan.references;
  const auto base = nothing_done(plan);
  const bool there = std::any_of(lines.begin(), lines.end(),
                                 [&](const ReferenceLine& line) { return line.y.has_value() && line.y == base; });
  if (base && !there) lines.insert(lines.begin(), {.y = base});
  return lines;
}

void draw_level_line(Picture& picture, const Box& panel, double y, const std::string& label, LabelPlacer& placer) {
  if (y < panel.top || y > panel.bottom) return;
  picture.line(panel.left, y, panel.right, y, dashed());
  placer.occupy({panel.left, y - 1, panel.right, y + 1});
  draw_label(picture, panel.right - kEndRoom, y, label, placer);
}

void draw_upright_line(Picture& picture, const Box& panel, double x, const std::string& label, LabelPlacer& placer) {
  if (x < panel.left || x > panel.right) return;
  picture.line(x, panel.top, x, panel.bottom, dashed());
  placer.occupy({x - 1, panel.top, x + 1, panel.bottom});
  draw_label(picture, x, panel.top + kTopRoom, label, placer);
}

void note_reference_lines(const PlotPlan& plan, std::vector<std::string>& notes) {
  for (const ReferenceLine& line : reference_lines(plan)) {
    std::string label = line.label;
    const bool full = plan.measure.ratio.empty() || plan.measure.ratio[1].ends_with("_full");
    if (label.empty() && full && line.y.has_value() && line.y == nothing_done(plan)) label = "the full cache";
    notes.push_back(fmt::format("Dashed line: {}{}{}{}.", line.x ? "x = " : "", shortest(line.x ? *line.x : *line.y),
                                label.empty() ? "" : ", ", label));
  }
}

}  // namespace kv
