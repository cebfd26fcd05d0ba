#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "harness/report/cells.h"
#include "harness/report/plan.h"
#include "harness/report/plot.h"

namespace kv {

// What the kinds of plot share; internal to the plots.

Drawing draw_curve(const PlotPlan& plan, const RowTable& rows);
Drawing draw_bars(const PlotPlan& plan, const RowTable& rows);
Drawing draw_scatter(const PlotPlan& plan, const RowTable& rows);
Drawing draw_roofline(const PlotPlan& plan, const RowTable& rows);
Drawing draw_heatmap(const PlotPlan& plan, const RowTable& rows);
Drawing draw_image(const PlotPlan& plan, const RowTable& rows);

// Samples, averaged columns and skipped cells; `spread` names what shows the interval, empty for none.
void note_samples(const PlotPlan& plan, const Cells& cells, std::string_view spread, std::vector<std::string>& notes);
// The different values of a column that have a number, in the order of the cases (skipped ones keep their place).
std::vector<std::string> column_values(const PlotPlan& plan, const RowTable& rows, const std::string& column);
// Values in the order of an axis: ascending where all are numbers, else as they come.
std::vector<std::string> sorted_labels(std::vector<std::string> labels);

// Many panels by two or more facet columns stand in a grid with a column for each value of the last facet column and a
// row for each of the others (layer x head); a combination without a panel leaves a hole.
struct PanelGrid {
  int columns = 0;          // 0: few panels or one facet column, in reading order
  int cells = 0;            // panels and holes
  std::vector<int> places;  // of each panel among the cells
};
PanelGrid arrange_panels(const std::vector<Key>& facets);

// A column or metric as an axis says it: its label, else its name without underscores.
std::string axis_name(const PlotPlan& plan, const std::string& column);
std::string default_label(const PlotPlan& plan, const std::string& given, const std::string& unit);
std::string x_label_of(const PlotPlan& plan);

template <typename T, typename Same>
T& find_or_add(std::vector<T>& list, Same same, T fresh) {
  const auto place = std::find_if(list.begin(), list.end(), same);
  if (place != list.end()) return *place;
  list.push_back(std::move(fresh));
  return list.back();
}

}  // namespace kv
