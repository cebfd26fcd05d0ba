#include <algorithm>

#include "harness/report/matrix_chart.h"
#include "harness/report/plot_kinds.h"
#include "harness/report/plot_parts.h"

namespace kv {

Drawing draw_heatmap(const PlotPlan& plan, const RowTable& rows) {
  std::vector<std::string> columns = plan.facet;
  columns.insert(columns.end(), {plan.x, plan.y});
  const Cells cells =
      collect(rows, {.measure = plan.measure, .where = plan.where, .columns = columns, .intervals = false});
  const std::vector<std::string> xs = sorted_labels(column_values(plan, rows, plan.x));
  const std::vector<std::string> ys = sorted_labels(column_values(plan, rows, plan.y));
  std::vector<Matrix> matrices;
  std::string unit;
  for (const Key& key : cells.keys) {
    const Cell& cell = cells.cells.at(key);
    if (!cell.estimate) continue;
    if (!cell.unit.empty()) unit = cell.unit;
    const Key facet(key.begin(), key.end() - 2);
    Matrix& matrix = find_or_add(
        matrices, [&](const Matrix& m) { return m.facet == facet; },
        Matrix{.facet = facet, .rows = std::vector(ys.size(), std::vector(xs.size(), kNothing))});
    const auto x = std::find(xs.begin(), xs.end(), key[key.size() - 2]) - xs.begin();
    const auto y = std::find(ys.begin(), ys.end(), key[key.size() - 1]) - ys.begin();
    matrix.rows[static_cast<std::size_t>(y)][static_cast<std::size_t>(x)] = cell.estimate->value;
  }
  if (matrices.empty()) {
    Drawing drawing;
    drawing.empty = no_rows(plan.measure);
    return drawing;
  }
  MatrixAxes axes{.facet = plan.facet};
  for (const std::string& x : xs) axes.x_labels.push_back(label_of(plan.labels, x));
  for (const std::string& y : ys) axes.y_labels.push_back(label_of(plan.labels, y));
  axes.x_label = x_label_of(plan);
  axes.y_label = plan.y_label.empty() ? label_of(plan.labels, plan.y) : plan.y_label;
  axes.z_label = default_label(plan, plan.z_label, unit);
  std::vector<std::string> notes;
  note_samples(plan, cells, "", notes);
  return draw_matrices(plan, std::move(matrices), axes, std::move(notes));
}

}  // namespace kv
