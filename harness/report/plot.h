#pragma once

#include <string>
#include <vector>

#include "harness/report/drawing.h"
#include "harness/report/plan.h"
#include "harness/rows.h"

namespace kv {

// One policy has one colour and marker in all plots (style.h). Curves of more than 120 points are averaged in 100 bins
// and matrices of more pixels than an SVG should hold are averaged in blocks; a note says so. `paper`: the paper's
// numbers of this plot's measure, drawn hollow where they have a place. UserError where rows do not form the plot asked
// for (two matrices in one panel, a number that is none).
Drawing draw(const PlotPlan& plan, const RowTable& rows, const std::vector<PaperValue>& paper = {});

// The paper's numbers that a plot can show: those of tables with the same measure, where their keys are the plot's
// columns or fixed by its `where`.
std::vector<PaperValue> paper_values(const ReportPlan& report, const PlotPlan& plot);

}  // namespace kv
