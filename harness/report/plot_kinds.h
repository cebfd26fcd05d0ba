#pragma once

#include "harness/report/drawing.h"
#include "harness/report/plan.h"
#include "harness/rows.h"

namespace kv {

// The kinds of plot, one a file; internal to plot.cpp.

using PaperValues = std::vector<PaperValue>;

Drawing draw_curve(const PlotPlan& plan, const RowTable& rows, const PaperValues& paper);
Drawing draw_bars(const PlotPlan& plan, const RowTable& rows, const PaperValues& paper);
Drawing draw_scatter(const PlotPlan& plan, const RowTable& rows);
Drawing draw_roofline(const PlotPlan& plan, const RowTable& rows);
Drawing draw_heatmap(const PlotPlan& plan, const RowTable& rows);
Drawing draw_image(const PlotPlan& plan, const RowTable& rows);

}  // namespace kv
