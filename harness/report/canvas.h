#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "harness/report/plan.h"
#include "harness/report/plot.h"

namespace kv {

// Panels on a grid with room for labels, ticks, a colour bar on the right and a legend below: what the kinds of plot
// share. Coordinates are pixels from the top left.
struct PanelSize {
  int width = 0;
  int height = 0;
};

enum class Mark { kLine, kPoint, kBox };

struct LegendEntry {
  std::string label;
  int style = 1;  // of define_styles()
};

// Room around the panels that depends on what is drawn.
struct Margins {
  int left = 72;  // for tick labels of four characters
  int right = 20;
  int tick_labels = 22;  // height of the labels below an x axis
  // Of a grid of small panels, which stand close and have tick labels at the outer edge only; 0: by their number, each
  // with its own.
  int columns = 0;
};

class Canvas {
 public:
  Canvas(int panels, PanelSize one, PanelSize several, Margins margins, Mark mark, std::vector<LegendEntry> legend);

  // Starts panel i: its place, its title, labels at the outer edge of the grid only.
  void panel(int i, const std::string& title, const std::string& x_label, const std::string& y_label);
  void add(const std::string& line) { commands_ += line + "\n"; }
  // Beside the last column, over the whole height.
  void color_bar(const std::string& label);
  void finish(Drawing& drawing);

 private:
  void draw_legend(Drawing& drawing);
  double x_share(double pixels) const { return pixels / width_; }
  double y_share(double pixels) const { return 1 - pixels / height_; }

  int panels_, columns_, rows_;
  int gap_x_, gap_y_;
  PanelSize size_;
  Margins margins_;
  Mark mark_;
  int legend_columns_, legend_height_;
  int width_ = 0, height_ = 0, panels_bottom_ = 0;
  std::vector<LegendEntry> legend_;
  std::string commands_;
};

// gnuplot's style lines 1..12 and the number of styles.
std::string define_styles();
inline constexpr int kStyles = 12;
// Fill of a bar: the colours repeat after 8, hatching tells the rest apart.
std::string fill_style(int style);

std::string define_palette();
std::string set_log(const std::string& axis, Scale scale);
std::string set_range(const std::string& axis, const std::array<double, 2>& range);
// Ticks at 1, 2 and 5 times powers of ten where a logarithmic axis is too short for powers of ten alone; else "".
std::string log_ticks(const std::string& axis, Scale scale, const std::array<double, 2>& range);
// Labels at the places 0, 1, 2 ... of a categorical axis, thinned to about `limit`, slanted where they do not fit a
// panel `room` pixels wide (0: never).
struct CategoryTicks {
  std::string command;
  int height = 22;  // of the labels, in pixels
};
CategoryTicks category_ticks(const std::string& axis, const std::vector<std::string>& labels, int limit, int room);
std::string number(double value);  // quantised to 6 digits: plots need no more, and the files stay small

}  // namespace kv
