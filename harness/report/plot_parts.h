#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "harness/report/cells.h"
#include "harness/report/plan.h"

namespace kv {

// What the kinds of plot share; internal to the plots.

// Samples, averaged columns and skipped cells; `spread` names what shows the interval, empty for none.
void note_samples(const PlotPlan& plan, const Cells& cells, std::string_view spread, std::vector<std::string>& notes);
// The different values of a column that have a number, in the order of the cases (skipped ones keep their place).
std::vector<std::string> column_values(const PlotPlan& plan, const RowTable& rows, const std::string& column);
// Values in the order of an axis: ascending where all are numbers, else as they come.
std::vector<std::string> sorted_labels(std::vector<std::string> labels);

// A column or metric as an axis says it: its label, else its name without underscores.
std::string axis_name(const PlotPlan& plan, const std::string& column);
std::string default_label(const PlotPlan& plan, const std::string& given, const std::string& unit);
std::string x_label_of(const PlotPlan& plan, const std::string& unit = "");

template <typename T, typename Same>
T& find_or_add(std::vector<T>& list, Same same, T fresh) {
  const auto place = std::find_if(list.begin(), list.end(), same);
  if (place != list.end()) return *place;
  list.push_back(std::move(fresh));
  return list.back();
}

}  // namespace kv
