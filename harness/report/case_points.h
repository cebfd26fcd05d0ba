#pragma once

#include <string>
#include <vector>

#include "harness/report/cells.h"
#include "harness/report/plan.h"

namespace kv {

// The cases of a plot, each at its own mean of the metric `x`: what scatter plots draw, and curves over what is
// measured join. Internal to the plots.

struct CasePoint {
  Key facet, series;
  Estimate x{},
      y{};  // x: the mean over the case's samples, whatever is taken of y; of a layer or head the whole case's
};

struct CasePoints {
  std::vector<CasePoint> points{};  // in the order of the cases
  std::string x_unit{}, y_unit{};
  Cells y{};
  std::vector<std::string> notes{};  // which have a number but no x, and so are no point
};

// A point a combination of the columns of `facet` and `series`, of `apart` and of all axes; the others are averaged.
CasePoints collect_case_points(const PlotPlan& plan, const RowTable& rows, const std::vector<std::string>& apart);

}  // namespace kv
