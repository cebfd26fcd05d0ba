#pragma once

#include <string>
#include <vector>

#include "harness/report/plan.h"
#include "harness/rows.h"

namespace kv {

// A plot as gnuplot commands, free of terminal and file names. Sizes are those of the SVG in pixels; PDF and PNG keep
// the proportions.
struct Drawing {
  int width = 0;
  int height = 0;
  std::string data;                // here-documents, shared by the terminals
  std::string commands;            // one multiplot: a panel a facet, then the legend below them
  std::vector<std::string> notes;  // samples, meaning of the band, binning
  std::string empty;               // why there is nothing to draw; then no file is written
};

// Colours of Okabe and Ito (2008) with their own dash and point type a series, so that lines differ in grey and for
// colour blindness; viridis for matrices. One policy has one style in all plots of a run. Curves of more than 120
// points are averaged in 100 bins and matrices of more pixels than an SVG should hold are averaged in blocks; a note
// says so. UserError where rows do not form the plot asked for (two matrices in one panel, a number that is none).
Drawing draw(const PlotPlan& plan, const RowTable& rows);

}  // namespace kv
