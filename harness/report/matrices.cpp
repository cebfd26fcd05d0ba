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

constexpr int kMaxPixels = 60000;  // of all panels; about 1 byte each in the SVG
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

// Row-major; .x and .y place entry (row, column) at (x0 + column * x_step, y0 + row * y_step).
struct Matrix {
  std::string title;
  std::vector<std::vector<double>> rows;
  double x0 = 0, y0 = 0, x_step = 1, y_step = 1;
};

std::size_t widest(const Matrix& matrix) {
  std::size_t columns = 0;
  for (const auto& row : matrix.rows) columns = std::max(columns, row.size());
  return columns;
}

// Means over square blocks, blanks left out.
Matrix shrink(const Matrix& matrix, std::size_t block) {
  Matrix small = matrix;
  small.rows.clear();
  const std::size_t columns = widest(matrix);
  for (std::size_t top = 0; top < matrix.rows.size(); top += block) {
    std::vector<double> out;
    for (std::size_t left = 0; left < columns; left += block) {
      double sum = 0;
      int count = 0;
      for (std::size_t r = top; r < std::min(top + block, matrix.rows.size()); ++r) {
        for (std::size_t c = left; c < std::min(left + block, matrix.rows[r].size()); ++c) {
          if (std::isnan(matrix.rows[r][c])) continue;
          sum += matrix.rows[r][c];
          ++count;
        }
      }
      out.push_back(count == 0 ? kNothing : sum / count);
    }
    small.rows.push_back(std::move(out));
  }
  const double step = static_cast<double>(block);
  small.x0 += matrix.x_step * (step - 1) / 2;
  small.y0 += matrix.y_step * (step - 1) / 2;
  small.x_step *= step;
  small.y_step *= step;
  return small;
}

struct MatrixAxes {
  std::vector<std::string> x_labels, y_labels;  // of categories; empty: numbers
  std::string x_label, y_label, z_label;
  bool top_down = false;
};

Drawing draw_matrices(const PlotPlan& plan, std::vector<Matrix> matrices, const MatrixAxes& axes,
                      std::vector<std::string> notes) {
  Drawing drawing;
  drawing.notes = std::move(notes);
  std::size_t pixels = 0;
  for (const Matrix& matrix : matrices) pixels += matrix.rows.size() * widest(matrix);
  const auto block = static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(pixels) / kMaxPixels)));
  if (block > 1) {
    for (Matrix& matrix : matrices) matrix = shrink(matrix, block);
    drawing.notes.push_back(fmt::format("Drawn as means over blocks of {} x {} entries.", block, block));
  }
  double low = std::numeric_limits<double>::infinity(), high = -low;
  const bool log = plan.z_scale != Scale::kLinear;
  for (const Matrix& matrix : matrices) {
    for (const auto& row : matrix.rows) {
      for (const double value : row) {
        if (std::isnan(value) || (log && value <= 0)) continue;
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
  }
  if (low > high) low = log ? 0.1 : 0, high = 1;
  if (log) low = std::max(low, high * 1e-5);  // five decades: below, all is dark anyway
  if (low == high) high = low + (low == 0 ? 1 : std::abs(low) * 0.1);
  const auto range = plan.z_range.value_or(std::array<double, 2>{low, high});

  const CategoryTicks x_ticks = category_ticks("x", axes.x_labels, 12, matrices.size() == 1 ? 420 : 250);
  const PanelSize square = {250, 250};
  const bool large = pixels / matrices.size() > 4096;
  Canvas canvas(static_cast<int>(matrices.size()), large ? PanelSize{400, 400} : PanelSize{420, 320},
                large ? square : PanelSize{250, 200}, {.right = 116, .tick_labels = x_ticks.height}, Mark::kBox, {});
  canvas.add(define_palette() +
             "set border 15 lc rgb '#404040'\nset tics nomirror scale 0.3\nset key off\nset datafile missing 'nan'");
  canvas.add("set format cb '%g'");
  canvas.add(set_log("cb", plan.z_scale) + "; " + set_range("cb", range) + log_ticks("cb", plan.z_scale, range));
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    const Matrix& matrix = matrices[m];
    const std::size_t columns = widest(matrix);
    canvas.panel(static_cast<int>(m), matrix.title, axes.x_label, axes.y_label);
    if (m == 0) {
      canvas.color_bar(axes.z_label);
    } else {
      canvas.add("unset colorbox");
    }
    const auto edge = [](double start, double step, std::size_t count) {
      return std::array<double, 2>{start - step / 2, start + step * (static_cast<double>(count) - 0.5)};
    };
    const auto x_range = edge(matrix.x0, matrix.x_step, columns);
    const auto y_range = edge(matrix.y0, matrix.y_step, matrix.rows.size());
    canvas.add(set_range("x", x_range));
    canvas.add(set_range("y", axes.top_down ? std::array<double, 2>{y_range[1], y_range[0]} : y_range));
    if (!axes.x_labels.empty()) canvas.add(x_ticks.command);
    if (!axes.y_labels.empty()) canvas.add(category_ticks("y", axes.y_labels, 12, 0).command);
    const std::string data = fmt::format("$m{}", m);
    drawing.data += data + " << EOD\n";
    for (const auto& row : matrix.rows) {
      std::string line;
      for (std::size_t c = 0; c < columns; ++c) {
        const double value = c < row.size() ? row[c] : kNothing;
        const bool blank = std::isnan(value) || (log && value <= 0);
        line += (c == 0 ? "" : " ") + (blank ? "nan" : fmt::format("{:.4g}", std::clamp(value, range[0], range[1])));
      }
      drawing.data += line + "\n";
    }
    drawing.data += "EOD\n";
    // Few cells become vector rectangles, which no viewer blurs; many become one embedded picture, which stays small.
    canvas.add(fmt::format("plot {} matrix using ({}+$1*{}):({}+$2*{}):3 with image{} notitle", data, number(matrix.x0),
                           number(matrix.x_step), number(matrix.y0), number(matrix.y_step),
                           matrix.rows.size() * columns <= 1024 ? " pixels" : ""));
  }
  canvas.finish(drawing);
  return drawing;
}

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
    const std::string title = label_of(plan.labels, plan.facet, Key(key.begin(), key.end() - 2));
    Matrix& matrix = find_or_add(
        matrices, [&](const Matrix& m) { return m.title == title; },
        Matrix{.title = title, .rows = std::vector(ys.size(), std::vector(xs.size(), kNothing))});
    const auto x = std::find(xs.begin(), xs.end(), key[key.size() - 2]) - xs.begin();
    const auto y = std::find(ys.begin(), ys.end(), key[key.size() - 1]) - ys.begin();
    matrix.rows[static_cast<std::size_t>(y)][static_cast<std::size_t>(x)] = cell.estimate->value;
  }
  if (matrices.empty()) {
    Drawing drawing;
    drawing.empty = no_rows(plan.measure);
    return drawing;
  }
  MatrixAxes axes;
  for (const std::string& x : xs) axes.x_labels.push_back(label_of(plan.labels, x));
  for (const std::string& y : ys) axes.y_labels.push_back(label_of(plan.labels, y));
  axes.x_label = x_label_of(plan);
  axes.y_label = plan.y_label.empty() ? label_of(plan.labels, plan.y) : plan.y_label;
  axes.z_label = default_label(plan, plan.z_label, unit);
  std::vector<std::string> notes;
  note_samples(plan, cells, "", notes);
  return draw_matrices(plan, std::move(matrices), axes, std::move(notes));
}

Drawing draw_image(const PlotPlan& plan, const RowTable& rows) {
  const std::vector<std::string> facet = plan.facet.empty() ? std::vector<std::string>{"layer", "head"} : plan.facet;
  std::vector<std::function<std::string(const Row&)>> readers;
  readers.reserve(facet.size());
  for (const std::string& column : facet) readers.push_back(column_reader(rows, column));
  const auto filter = row_filter(rows, plan.where);
  std::vector<std::pair<std::string, std::map<double, std::vector<double>>>> panels;
  const auto& metrics = plan.measure.metrics;
  for (const Row& row : rows.rows) {
    if (std::find(metrics.begin(), metrics.end(), row.metric) == metrics.end() || !row.skipped.empty() || !row.x)
      continue;
    if (!filter(row)) continue;
    Key key;
    for (const auto& read : readers) key.push_back(read(row));
    const std::string title = label_of(plan.labels, facet, key);
    auto& panel = find_or_add(panels, [&](const auto& p) { return p.first == title; }, {title, {}});
    if (!panel.second.emplace(*row.x, parse_matrix_row(plan, row)).second) {
      throw UserError(
          fmt::format("plot '{}': several matrices in the panel '{}' (row {} appears twice), expected one: narrow it "
                      "with 'where' or 'facet'",
                      plan.name, printable(title), shortest(*row.x)));
    }
  }
  Drawing drawing;
  if (panels.empty()) {
    drawing.empty = no_rows(plan.measure);
    return drawing;
  }
  std::vector<Matrix> matrices;
  for (auto& [title, lines] : panels) {
    Matrix matrix;
    matrix.title = title;
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
  MatrixAxes axes;
  axes.x_label = plan.x_label.empty() ? "key position" : plan.x_label;
  axes.y_label = plan.y_label.empty() ? "query position" : plan.y_label;
  axes.z_label = default_label(plan, plan.z_label, "");
  axes.top_down = true;
  std::vector<std::string> notes;
  if (!plan.note.empty()) notes.push_back(plan.note);
  return draw_matrices(plan, std::move(matrices), axes, std::move(notes));
}

}  // namespace kv
