#include "harness/report/label_placer.h"

#include <algorithm>

namespace kv {
namespace {

constexpr double kPoint = 9;  // side of the square that a point needs
constexpr double kLine = 12;

}  // namespace

void LabelPlacer::occupy_point(double x, double y) {
  occupy({x - kPoint / 2, y - kPoint / 2, x + kPoint / 2, y + kPoint / 2});
}

std::optional<Box> LabelPlacer::place(double x, double y, const std::string& text) {
  const double width = text_width(text, kSize) + 2;
  const double beside = kPoint / 2 + 1, above = (kLine + kPoint) / 2;
  const std::array<std::array<double, 2>, 8> places = {
      {{beside, 0},  // of the box's left edge and middle, from the point
       {-beside - width, 0},
       {-width / 2, above},
       {-width / 2, -above},
       {beside, above},
       {beside, -above},
       {-beside - width, above},
       {-beside - width, -above}}};
  for (const auto& [left, middle] : places) {
    const Box box{x + left, y + middle - kLine / 2, x + left + width, y + middle + kLine / 2};
    const bool free = panel_.holds(box) &&
                      std::none_of(taken_.begin(), taken_.end(), [&](const Box& other) { return box.meets(other); });
    if (!free) continue;
    occupy(box);
    return box;
  }
  return std::nullopt;
}

}  // namespace kv
