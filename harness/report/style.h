#pragma once

#include <string>
#include <vector>

#include "harness/report/cells.h"
#include "harness/report/picture.h"

namespace kv {

enum class Mark { kCircle, kSquare, kTriangle, kDiamond, kWedge, kPentagon, kPlus, kCross, kStar };
inline constexpr int kMarks = 9;

// How a series looks in every plot. Any two of a plot differ in at least two of colour, lightness, marker and dashes,
// so that they are told apart in grey and by colour-blind readers. Colours are those of Okabe and Ito (2008), without
// their yellow, which is too light on white, and darker steps of them.
struct Style {
  Color color = kInk;
  Mark mark = Mark::kCircle;
  bool hollow = false;
  std::vector<double> dashes{};
};

// A policy or an allocation looks the same in every plot and page, for ever: a known name has its line in a table,
// any other gets a style from a hash of its name.
Style style_of_name(const std::string& name);

// Styles of the series of one plot, whose key columns are `columns`. The first column that names a policy or an
// allocation settles colour and marker; series that share it differ in dashes and filling. Without such a column they
// are numbered as they come.
class SeriesStyles {
 public:
  explicit SeriesStyles(std::vector<std::string> columns) : columns_(std::move(columns)) {}
  Style of(const Key& series);

 private:
  std::vector<std::string> columns_;
  std::vector<Key> seen_;
};

// A marker of about `size` pixels.
void draw_mark(Picture& picture, double x, double y, const Style& style, double size = 8);
Stroke line_stroke(const Style& style);

// The colours of a matrix, dark to light (viridis), `steps` of them.
std::vector<Color> matrix_palette(int steps);

}  // namespace kv
