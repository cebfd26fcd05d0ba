#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "harness/report/escape.h"
#include "harness/report/matrix_chart.h"
#include "harness/report/plot_kinds.h"
#include "harness/report/plot_parts.h"
#include "kernels/error.h"

namespace kv {
namespace {

std::vector<double> parse_matrix_row(const PlotPlan& plan, const Row& row) {
  std::vector<double> out;
  std::string_view text = row.text;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    const auto value = parse_number(word);
    if (!value) {
      throw UserError(fmt::format("plot '{}': '{}' in the text of metric {}, expected numbers separated by blanks",
                                  plan.name, printable(word.substr(0, 40)), row.metric));
    }
    out.push_back(*value);
  }
  return out;
}

}  // namespace

Drawing draw_image(const PlotPlan& plan, const RowTable& rows) {
  const std::vector<std::string> facet = plan.facet.empty() ? std::vector<std::string>{"layer", "head"} : plan.facet;
  std::vector<std::function<std::string(const Row&)>> readers;
  readers.reserve(facet.size());
  for (const std::string& column : facet) readers.push_back(column_reader(rows, column));
  const auto filter = row_filter(rows, plan.where);
  std::vector<std::pair<Key, std::map<double, std::vector<double>>>> panels;
  const auto& metrics = plan.measure.metrics;
  for (const Row& row : rows.rows) {
    if (std::find(metrics.begin(), metrics.end(), row.metric) == metrics.end() || !row.skipped.empty() || !row.x)
      continue;
    if (!filter(row)) continue;
    Key key;
    for (const auto& read : readers) key.push_back(read(row));
    auto& panel = find_or_add(panels, [&](const auto& p) { return p.first == key; }, {key, {}});
    if (!panel.second.emplace(*row.x, parse_matrix_row(plan, row)).second) {
      throw UserError(
          fmt::format("plot '{}': several matrices in the panel '{}' (row {} appears twice), expected one: narrow it "
                      "with 'where' or 'facet'",
                      plan.name, printable(label_of(plan.labels, facet, key)), shortest(*row.x)));
    }
  }
  Drawing drawing;
  if (panels.empty()) {
    drawing.empty = no_rows(plan.measure);
    return drawing;
  }
  std::vector<Matrix> matrices;
  for (auto& [key, lines] : panels) {
    Matrix matrix{.facet = key};
    matrix.y0 = lines.begin()->first;
    if (lines.size() > 1) {
      matrix.y_step = (lines.rbegin()->first - lines.begin()->first) / static_cast<double>(lines.size() - 1);
    }
    for (auto& [x, values] : lines) matrix.rows.push_back(std::move(values));
    if (widest(matrix) == matrix.rows.size()) {  // square: keys are counted as queries are
      matrix.x0 = matrix.y0;
      matrix.x_step = matrix.y_step;
    }
    matrices.push_back(std::move(matrix));
  }
  MatrixAxes axes{.facet = facet};
  axes.x_label = plan.x_label.empty() ? "key position" : plan.x_label;
  axes.y_label = plan.y_label.empty() ? "query position" : plan.y_label;
  axes.z_label = default_label(plan, plan.z_label, "");
  axes.top_down = true;
  std::vector<std::string> notes;
  if (!plan.note.empty()) notes.push_back(plan.note);
  return draw_matrices(plan, std::move(matrices), axes, std::move(notes));
}

}  // namespace kv
