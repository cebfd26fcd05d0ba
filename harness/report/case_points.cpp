#include "harness/report/case_points.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/report/pile.h"

namespace kv {
namespace {

// That of the same case; where cells are of layers, heads or an x, which a case's number is not, that of their case.
const Cell* cell_of(const Cells& cells, const Key& key) {
  if (const auto found = cells.cells.find(key); found != cells.cells.end()) return &found->second;
  BestFit<Cell> best;
  for (const auto& [other, cell] : cells.cells) best.offer(match(key, other), cell);
  return best.found();
}

std::vector<std::string> key_columns(const PlotPlan& plan, const RowTable& rows,
                                     const std::vector<std::string>& apart) {
  std::vector<std::string> columns = plan.facet;
  columns.insert(columns.end(), plan.series.begin(), plan.series.end());
  for (const auto* more : {&apart, &rows.axes}) {
    for (const std::string& column : *more) {
      if (std::find(columns.begin(), columns.end(), column) == columns.end()) columns.push_back(column);
    }
  }
  return columns;
}

void note_without_x(const PlotPlan& plan, const std::vector<const Cell*>& without, std::vector<std::string>& notes) {
  if (without.empty()) return;
  std::string reason;
  for (const Cell* cell : without) {
    if (reason.empty() && cell) reason = cell->skipped.reason;
  }
  notes.push_back(fmt::format("Left out, without {}: {} point{}{}{}.", plan.x, without.size(),
                              without.size() == 1 ? "" : "s", reason.empty() ? "" : ": ", reason));
}

}  // namespace

CasePoints collect_case_points(const PlotPlan& plan, const RowTable& rows, const std::vector<std::string>& apart) {
  const std::vector<std::string> columns = key_columns(plan, rows, apart);
  std::vector<std::string> x_columns = columns;
  std::erase(x_columns, "metric");
  const Measure x_measure{.metrics = {plan.x}, .unit = plan.measure.unit};
  const Cells across =
      collect(rows, {.measure = x_measure, .where = plan.where, .columns = x_columns, .intervals = plan.band});
  CasePoints out;
  out.y = collect(rows, {.measure = plan.measure, .where = plan.where, .columns = columns, .intervals = plan.band});
  const auto facet_end = static_cast<std::ptrdiff_t>(plan.facet.size());
  const auto series_end = facet_end + static_cast<std::ptrdiff_t>(plan.series.size());
  std::vector<const Cell*> without;
  for (const Key& key : out.y.keys) {
    const Cell& y = out.y.cells.at(key);
    if (!y.estimate) continue;
    Key of_case;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (columns[i] != "metric") of_case.push_back(key[i]);
    }
    const Cell* x = cell_of(across, of_case);
    if (!x || !x->estimate) {
      without.push_back(x);
      continue;
    }
    out.x_unit = x->unit;
    if (!y.unit.empty()) out.y_unit = y.unit;
    out.points.push_back({.facet = Key(key.begin(), key.begin() + facet_end),
                          .series = Key(key.begin() + facet_end, key.begin() + series_end),
                          .x = *x->estimate,
                          .y = *y.estimate});
  }
  note_without_x(plan, without, out.notes);
  return out;
}

}  // namespace kv
