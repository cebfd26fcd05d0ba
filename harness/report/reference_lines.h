#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/report/label_placer.h"
#include "harness/report/picture.h"
#include "harness/report/plan.h"

namespace kv {

// Where doing nothing would stand: 1 for a ratio (of losses: the full cache's), which needs a line to be read. Not in a
// scatter plot, where doing nothing is a point.
std::optional<double> nothing_done(const PlotPlan& plan);

// The lines that a reader compares with: that of nothing_done, unless the spec has one there, and those of the spec.
std::vector<ReferenceLine> reference_lines(const PlotPlan& plan);

// Dashed, across the panel; nothing where it does not show the place. Labels stand where `placer` finds room.
void draw_level_line(Picture& picture, const Box& panel, double y, const std::string& label, LabelPlacer& placer);
void draw_upright_line(Picture& picture, const Box& panel, double x, const std::string& label, LabelPlacer& placer);

// A note a line, with its value: its label may have found no room.
void note_reference_lines(const PlotPlan& plan, std::vector<std::string>& notes);

}  // namespace kv
