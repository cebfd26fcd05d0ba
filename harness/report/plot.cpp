#include "harness/report/plot.h"

#include <algorithm>

#include "harness/report/cells.h"
#include "harness/report/plot_kinds.h"

namespace kv {
namespace {

// Every key of the value is a column of the plot, or one value that `where` fixes; every column has its key.
bool has_place(const PaperValue& value, const PlotPlan& plot) {
  std::vector<std::string> columns = plot.series;
  columns.insert(columns.end(), plot.facet.begin(), plot.facet.end());
  columns.push_back(plot.x);
  const bool all = std::all_of(columns.begin(), columns.end(),
                               [&](const std::string& column) { return value.keys.contains(column); });
  return all && std::all_of(value.keys.begin(), value.keys.end(), [&](const auto& key) {
           const auto fixed = plot.where.find(key.first);
           if (fixed == plot.where.end()) {
             return std::find(columns.begin(), columns.end(), key.first) != columns.end();
           }
           return admits(fixed->second, key.second);
         });
}

}  // namespace

std::vector<PaperValue> paper_values(const ReportPlan& report, const PlotPlan& plot) {
  std::vector<PaperValue> out;
  for (const TablePlan& table : report.tables) {
    const auto block = report.paper.find(table.paper);
    if (block == report.paper.end() || table.paired) continue;
    const Measure &ours = plot.measure, &theirs = table.measure;
    const bool same = ours.metrics == theirs.metrics && ours.ratio == theirs.ratio && ours.unit == theirs.unit &&
                      ours.aggregate == theirs.aggregate && ours.metrics.size() < 2;
    if (!same) continue;
    for (const PaperValue& value : block->second.values) {
      const bool known =
          std::any_of(out.begin(), out.end(), [&](const auto& other) { return other.keys == value.keys; });
      if (!known && has_place(value, plot)) out.push_back(value);
    }
  }
  return out;
}

Drawing draw(const PlotPlan& plan, const RowTable& rows, const std::vector<PaperValue>& paper) {
  switch (plan.kind) {
    case PlotKind::kCurve:
      return draw_curve(plan, rows, paper);
    case PlotKind::kBars:
      return draw_bars(plan, rows, paper);
    case PlotKind::kScatter:
      return draw_scatter(plan, rows);
    case PlotKind::kRoofline:
      return draw_roofline(plan, rows);
    case PlotKind::kHeatmap:
      return draw_heatmap(plan, rows);
    case PlotKind::kImage:
      return draw_image(plan, rows);
  }
  return {};
}

}  // namespace kv
