#pragma once

#include <string>
#include <vector>

#include "harness/report/axis.h"
#include "harness/report/picture.h"
#include "harness/report/style.h"

namespace kv {

// Where panels stand. A crossed grid has a column for each value of the last facet column and a row for each of the
// others (layer x head), each titled once; a combination without a panel leaves a hole. Otherwise panels stand in
// reading order, each with its own title.
struct PanelGrid {
  int columns = 1, rows = 1;
  std::vector<int> places{};  // of each panel among the cells, row by row
  bool crossed = false;
  std::vector<std::string> column_titles{}, row_titles{};
};

// Panels by the keys of their facets; `columns` names the facet columns, for titles.
PanelGrid arrange_panels(const std::vector<Key>& facets, const std::vector<std::string>& columns, const Labels& labels);

struct FrameOptions {
  PanelGrid grid{};
  std::vector<std::string> titles{};  // of the panels; not of a crossed grid
  double panel_width = 0, panel_height = 0;
  double left = 0;          // room for what stands beside the first column: tick or row labels, and the axis label
  double right = 16;        // room for what stands beside the last column
  double ticks_below = 18;  // room for tick labels
  std::string x_label{}, y_label{};
};

// Arranges panels, which have a facet each, and titles them by it.
template <class Panel>
void place_panels(FrameOptions& options, const std::vector<Panel>& panels, const std::vector<std::string>& columns,
                  const Labels& labels) {
  std::vector<Key> facets;
  for (const Panel& panel : panels) {
    facets.push_back(panel.facet);
    options.titles.push_back(label_of(labels, columns, panel.facet));
  }
  options.grid = arrange_panels(facets, columns, labels);
}

enum class GridLines { kYes, kNo };

// Panels on a picture with titles, one label for each axis, room for ticks at the outer edge of the grid only, since
// all panels share their scales, and the legend below. Sets the picture's size.
class Frame {
 public:
  Frame(Picture& picture, FrameOptions options);

  Box panel(std::size_t i) const { return cell(options_.grid.places[i]); }
  bool first_in_row(std::size_t i) const { return options_.grid.places[i] % options_.grid.columns == 0; }
  bool lowest(std::size_t i) const;  // of its column
  Box all() const;                   // around the panels

  // Tick labels, those of x below the lowest panels, those of y beside the first, and a line across for each.
  void draw_x_axis(std::size_t i, const PlotAxis& axis, const std::vector<Tick>& ticks,
                   GridLines lines = GridLines::kYes);
  void draw_y_axis(std::size_t i, const PlotAxis& axis, const std::vector<Tick>& ticks,
                   GridLines lines = GridLines::kYes);
  void draw_border(std::size_t i);

 private:
  Box cell(int place) const;
  void draw_titles();
  void draw_labels();

  Picture& picture_;
  FrameOptions options_;
  double row_pitch_ = 0, top_ = 0;
};

struct LegendEntry {
  std::string label;
  Style style;
};

enum class LegendMark { kLine, kPoint };

// Entries side by side below what is drawn; the picture grows.
void draw_legend(Picture& picture, const std::vector<LegendEntry>& legend, LegendMark mark);

// Categories at 0, 1, 2 ..., thinned to about `limit`.
std::vector<Tick> category_ticks(const std::vector<std::string>& labels, int limit);

// Room that tick labels beside an axis take.
double widest_tick(const std::vector<Tick>& ticks);

}  // namespace kv
