#pragma once

#include <limits>
#include <string>
#include <vector>

#include "harness/report/cell.h"
#include "harness/report/drawing.h"
#include "harness/report/plan.h"

namespace kv {

// Matrices as panels of coloured cells with one scale of colours; internal to the plots.

inline constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();  // a blank cell

// Row-major; .x and .y place entry (row, column) at (x0 + column * x_step, y0 + row * y_step).
struct Matrix {
  Key facet;
  std::vector<std::vector<double>> rows{};
  double x0 = 0, y0 = 0, x_step = 1, y_step = 1;
};

struct MatrixAxes {
  std::vector<std::string> x_labels{}, y_labels{};  // of categories; empty: numbers
  std::string x_label{}, y_label{}, z_label{};
  std::vector<std::string> facet{};  // columns of the matrices' facets
  bool top_down = false;
};

// The longest row.
std::size_t widest(const Matrix& matrix);

Drawing draw_matrices(const PlotPlan& plan, std::vector<Matrix> matrices, const MatrixAxes& axes,
                      std::vector<std::string> notes);

}  // namespace kv
