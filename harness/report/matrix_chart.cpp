#include "harness/report/matrix_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/report/frame.h"

namespace kv {
namespace {

constexpr int kMaxPixels = 60000;  // of all panels; about 1 byte each in the SVG
constexpr int kColors = 64;
constexpr double kBarGap = 16, kBarWidth = 14;

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

// The values that the ends of the colours stand for.
std::array<double, 2> color_range(const PlotPlan& plan, const std::vector<Matrix>& matrices) {
  if (plan.z_range) return *plan.z_range;
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
  if (high - low <= 1e-9 * std::max(std::abs(low), std::abs(high))) high = low + (low == 0 ? 1 : std::abs(low) * 0.1);
  return {low, high};
}

Raster raster_of(const Matrix& matrix, const PlotAxis& colors, const Box& box, bool top_down) {
  Raster raster{.box = box, .columns = static_cast<int>(widest(matrix)), .palette = matrix_palette(kColors)};
  const auto columns = static_cast<std::size_t>(raster.columns);
  for (std::size_t r = 0; r < matrix.rows.size(); ++r) {
    const auto& row = matrix.rows[top_down ? r : matrix.rows.size() - 1 - r];
    for (std::size_t c = 0; c < columns; ++c) {
      const double value = c < row.size() ? row[c] : kNothing;
      const bool blank = std::isnan(value) || (colors.scale() != Scale::kLinear && value <= 0);
      const double step = blank ? 0 : std::floor(colors.at(std::clamp(value, colors.range()[0], colors.range()[1])));
      raster.cells.push_back(blank ? Raster::kBlank : static_cast<std::uint8_t>(std::min(step, kColors - 1.0)));
    }
  }
  return raster;
}

void draw_color_bar(Picture& picture, const Box& panels, const PlotAxis& colors, const std::string& label) {
  const Box bar{panels.right + kBarGap, panels.top, panels.right + kBarGap + kBarWidth, panels.bottom};
  Raster steps{.box = bar, .columns = 1, .palette = matrix_palette(kColors)};
  for (int i = kColors - 1; i >= 0; --i) steps.cells.push_back(static_cast<std::uint8_t>(i));
  picture.add(steps);
  const PlotAxis axis = colors.placed({bar.bottom, bar.top});
  const std::vector<Tick> ticks = axis.ticks(5);
  for (const Tick& tick : ticks) {
    picture.line(bar.right, axis.at(tick.value), bar.right + 3, axis.at(tick.value), {.color = kQuiet});
    picture.add(Text{.x = bar.right + 6, .y = axis.at(tick.value), .text = tick.text, .size = kSmallText});
  }
  picture.add(Text{.x = bar.right + 6 + widest_tick(ticks) + 12,
                   .y = (bar.top + bar.bottom) / 2,
                   .text = elide(label, picture.height - 16, kTextSize),
                   .anchor = Anchor::kMiddle,
                   .degrees = 90});
  Text& text = std::get<Text>(picture.items.back());
  const double half = text_width(text.text, kTextSize) / 2 + 4;
  text.y = std::clamp(text.y, std::min(half, picture.height / 2), std::max(picture.height - half, picture.height / 2));
}

std::array<double, 2> edges(double start, double step, std::size_t count) {
  return {start - step / 2, start + step * (static_cast<double>(count) - 0.5)};
}

FrameOptions frame_options(const PlotPlan& plan, const std::vector<Matrix>& matrices, const MatrixAxes& axes,
                           const PlotAxis& colors, bool large) {
  FrameOptions options{.x_label = axes.x_label, .y_label = axes.y_label};
  place_panels(options, matrices, axes.facet, plan.labels);
  const bool lone = matrices.size() == 1;
  options.panel_width = large ? (lone ? 400 : 250) : lone ? 400 : 210;
  options.panel_height = large ? (lone ? 400 : 250) : lone ? 300 : 170;
  double labels = axes.y_labels.empty() ? 34 : 0;
  for (const std::string& label : axes.y_labels) labels = std::max(labels, text_width(label, kSmallText));
  options.left = std::min(labels, 120.0) + 14;
  options.right = kBarGap + kBarWidth + 6 + widest_tick(colors.ticks(5)) + 26;
  return options;
}

std::vector<Tick> shortened(std::vector<Tick> ticks, double width) {
  for (Tick& tick : ticks) tick.text = elide(tick.text, width, kSmallText);
  return ticks;
}

}  // namespace

std::size_t widest(const Matrix& matrix) {
  std::size_t columns = 0;
  for (const auto& row : matrix.rows) columns = std::max(columns, row.size());
  return columns;
}

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
  const PlotAxis colors(plan.z_scale, color_range(plan, matrices), {0, kColors});
  Picture& picture = drawing.picture;
  Frame frame(picture, frame_options(plan, matrices, axes, colors, pixels / matrices.size() > 4096));
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    const Matrix& matrix = matrices[m];
    const Box box = frame.panel(m);
    const PlotAxis x(Scale::kLinear, edges(matrix.x0, matrix.x_step, widest(matrix)), {box.left, box.right});
    const PlotAxis y(
        Scale::kLinear, edges(matrix.y0, matrix.y_step, matrix.rows.size()),
        axes.top_down ? std::array<double, 2>{box.top, box.bottom} : std::array<double, 2>{box.bottom, box.top});
    picture.add(raster_of(matrix, colors, box, axes.top_down));
    const std::vector<Tick> x_ticks = axes.x_labels.empty() ? x.ticks(4) : category_ticks(axes.x_labels, 12);
    const std::vector<Tick> y_ticks = axes.y_labels.empty() ? y.ticks(5) : category_ticks(axes.y_labels, 12);
    frame.draw_x_axis(m, x, shortened(x_ticks, 100), GridLines::kNo);
    frame.draw_y_axis(m, y, shortened(y_ticks, 120), GridLines::kNo);
    picture.rectangle(box, Stroke{.color = kQuiet, .width = 0.8}, std::nullopt);
  }
  draw_color_bar(picture, frame.all(), colors, axes.z_label);
  return drawing;
}

}  // namespace kv
