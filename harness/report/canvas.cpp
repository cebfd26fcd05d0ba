#include "harness/report/canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/report/escape.h"

namespace kv {
namespace {

constexpr int kTop = 30;
constexpr int kAxisLabel = 38;
constexpr int kGapX = 62;
constexpr int kGapY = 40;  // and the tick labels
constexpr int kCloseX = 16;
constexpr int kCloseY = 36;
constexpr int kLegendLine = 22;
constexpr int kCharacter = 8;  // width of a letter at 13 px, rounded up

int columns_for(int panels) { return panels <= 3 ? panels : panels == 4 ? 2 : panels <= 9 ? 3 : 4; }

int legend_entry_width(const std::vector<LegendEntry>& legend) {
  std::size_t longest = 0;
  for (const LegendEntry& entry : legend) longest = std::max(longest, entry.label.size());
  return 62 + kCharacter * static_cast<int>(longest);
}

std::array<double, 4> legend_box(double x, double y) { return {x, x + 30, y - 5, y + 5}; }

}  // namespace

Canvas::Canvas(int panels, PanelSize one, PanelSize several, Margins margins, Mark mark,
               std::vector<LegendEntry> legend)
    : panels_(panels),
      columns_(margins.columns > 0 ? margins.columns : columns_for(panels)),
      rows_((panels + columns_ - 1) / columns_),
      gap_x_(margins.columns > 0 ? kCloseX : kGapX),
      gap_y_(margins.columns > 0 ? kCloseY : kGapY + margins.tick_labels),
      size_(panels == 1 ? one : several),
      margins_(margins),
      mark_(mark),
      legend_(std::move(legend)) {
  width_ = margins_.left + columns_ * size_.width + (columns_ - 1) * gap_x_ + margins_.right;
  const int entries = static_cast<int>(legend_.size());
  legend_columns_ = std::clamp((width_ - 20) / legend_entry_width(legend_), 1, std::max(entries, 1));
  const int legend_rows = (entries + legend_columns_ - 1) / legend_columns_;
  legend_height_ = legend_rows == 0 ? 0 : legend_rows * kLegendLine + 8;
  panels_bottom_ = kTop + rows_ * size_.height + (rows_ - 1) * gap_y_;
  height_ = panels_bottom_ + margins_.tick_labels + kAxisLabel + legend_height_;
  commands_ = "set multiplot\n";
}

void Canvas::panel(int i, const std::string& title, const std::string& x_label, const std::string& y_label) {
  const int column = i % columns_;
  const int row = i / columns_;
  const int left = margins_.left + column * (size_.width + gap_x_);
  const int top = kTop + row * (size_.height + gap_y_);
  add(fmt::format("set lmargin at screen {:.4f}; set rmargin at screen {:.4f}", x_share(left),
                  x_share(left + size_.width)));
  add(fmt::format("set tmargin at screen {:.4f}; set bmargin at screen {:.4f}", y_share(top),
                  y_share(top + size_.height)));
  add("set title " + quote_gnuplot(title) + " offset 0,-0.4");
  const bool lowest = i + columns_ >= panels_;
  add("set xlabel " + quote_gnuplot(lowest ? x_label : ""));
  add("set ylabel " + quote_gnuplot(column == 0 ? y_label : ""));
  if (margins_.columns == 0) return;
  add(std::string("set format x '") + (lowest ? "%h" : "") + "'; set format y '" + (column == 0 ? "%h" : "") + "'");
}

void Canvas::color_bar(const std::string& label) {
  add(fmt::format("set colorbox user origin screen {:.4f},{:.4f} size screen {:.4f},{:.4f}",
                  x_share(width_ - margins_.right + 16), y_share(panels_bottom_), x_share(14),
                  1 - y_share(panels_bottom_ - kTop)));
  add("set cblabel " + quote_gnuplot(label));
}

// By hand: gnuplot's own key drops the entries that it finds no room for.
void Canvas::draw_legend(Drawing& drawing) {
  add("reset; unset border; unset tics; unset key; unset colorbox");
  add(define_styles() +
      "set lmargin at screen 0; set rmargin at screen 1; set bmargin at screen 0; set tmargin at screen 1");
  add(fmt::format("set xrange [0:{}]; set yrange [{}:0]", width_, height_));
  const int entry_width = legend_entry_width(legend_);
  const int used = std::min(legend_columns_, static_cast<int>(legend_.size()));
  const double left = std::max(10.0, (width_ - used * entry_width) / 2.0);
  std::string plots;
  for (std::size_t i = 0; i < legend_.size(); ++i) {
    const int style = legend_[i].style;
    const double x = left + static_cast<int>(i) % legend_columns_ * entry_width;
    const int line = static_cast<int>(i) / legend_columns_;
    const double y = height_ - legend_height_ + kLegendLine * (line + 0.5);
    add(fmt::format("set label {} {} at {},{} left", i + 1, quote_gnuplot(legend_[i].label), x + 38, y));
    const std::string block = fmt::format("$legend{}", i);
    const auto [x0, x1, y0, y1] = legend_box(x, y);
    drawing.data += mark_ == Mark::kBox
                        ? fmt::format("{} << EOD\n{} {} {} {} {} {}\nEOD\n", block, (x0 + x1) / 2, y, x0, x1, y0, y1)
                        : fmt::format("{0} << EOD\n{1} {4}\n{2} {4}\n{3} {4}\nEOD\n", block, x0, (x0 + x1) / 2, x1, y);
    plots += plots.empty() ? "plot " : ", ";
    if (mark_ == Mark::kBox) {
      plots += fmt::format("{} with boxxyerror ls {} dt 1 lw 1 {}", block, style, fill_style(style));
      continue;
    }
    if (mark_ == Mark::kLine) plots += fmt::format("{} with lines ls {}, ", block, style);
    plots += fmt::format("{} every 3::1 with points ls {}", block, style);
  }
  add(plots);
}

void Canvas::finish(Drawing& drawing) {
  if (!legend_.empty()) draw_legend(drawing);
  add("unset multiplot");
  drawing.width = width_;
  drawing.height = height_;
  drawing.commands = std::move(commands_);
}

std::string define_styles() {
  // Okabe and Ito without their yellow, which is too light for lines on white.
  static constexpr std::array<const char*, 8> kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                         "#e69f00", "#56b4e9", "#000000", "#7f7f7f"};
  static constexpr std::array<int, 8> kPoints = {7, 5, 9, 13, 11, 6, 4, 8};
  static constexpr std::array<const char*, 5> kDashes = {"1", "'-'", "'-.'", "'..-'", "'.'"};
  std::string out;
  for (std::size_t i = 0; i < kStyles; ++i) {
    out += fmt::format("set style line {} lc rgb '{}' lw 1.8 dt {} pt {} ps 0.7\n", i + 1, kColors[i % kColors.size()],
                       kDashes[i % kDashes.size()], kPoints[(i + i / kPoints.size()) % kPoints.size()]);
  }
  return out;
}

std::string define_palette() {
  return "set palette maxcolors 64 defined (0 '#440154', 1 '#482878', 2 '#3e4989', 3 '#31688e', 4 '#26828e', 5 "
         "'#1f9e89', 6 '#35b779', 7 '#6ece58', 8 '#b5de2b', 9 '#fde725')\n";
}

std::string set_log(const std::string& axis, Scale scale) {
  if (scale == Scale::kLinear) return "unset logscale " + axis;
  return "set logscale " + axis + (scale == Scale::kLog2 ? " 2" : " 10");
}

std::string set_range(const std::string& axis, const std::array<double, 2>& range) {
  return "set " + axis + "range [" + number(range[0]) + ":" + number(range[1]) + "]";
}

std::string log_ticks(const std::string& axis, Scale scale, const std::array<double, 2>& range) {
  if (scale != Scale::kLog10 || range[0] <= 0 || range[1] / range[0] > 100) return "";
  std::string ticks;
  for (int power = static_cast<int>(std::floor(std::log10(range[0]))); std::pow(10, power) <= range[1]; ++power) {
    for (const int factor : {1, 2, 5}) {
      const double tick = factor * std::pow(10, power);
      if (tick < range[0] || tick > range[1]) continue;
      ticks += (ticks.empty() ? "" : ", ") + number(tick);
    }
  }
  return ticks.empty() ? "" : "; set " + axis + "tics (" + ticks + ")";
}

CategoryTicks category_ticks(const std::string& axis, const std::vector<std::string>& labels, int limit, int room) {
  const int count = static_cast<int>(labels.size());
  const int step = std::max(1, (count + limit - 1) / limit);
  std::size_t longest = 0;
  std::string ticks;
  for (int i = 0; i < count; i += step) {
    const std::string& label = labels[static_cast<std::size_t>(i)];
    longest = std::max(longest, label.size());
    ticks += (ticks.empty() ? "" : ", ") + quote_gnuplot(label) + fmt::format(" {}", i);
  }
  const int shown = std::max(1, (count + step - 1) / step);
  const bool slanted = room > 0 && static_cast<int>(longest) * kCharacter * shown > room;
  CategoryTicks out;
  out.command =
      "set " + axis + "tics " + (slanted ? "rotate by 30 right " : "norotate ") + "(" + ticks + ") nomirror scale 0.5";
  if (slanted) out.height = 22 + static_cast<int>(longest) * kCharacter / 2;
  return out;
}

std::string fill_style(int style) {
  return style <= 8 ? "fs solid 0.85 border lc rgb '#404040'" : "fs pattern 5 border lc rgb '#404040'";
}

std::string number(double value) { return fmt::format("{:.6g}", value); }

}  // namespace kv
