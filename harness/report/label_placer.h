#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/report/picture.h"

namespace kv {

// Finds room for labels beside, above or below their points, inside a panel, where they meet nothing that is drawn
// already.
class LabelPlacer {
 public:
  static constexpr double kSize = 10;  // of the letters

  explicit LabelPlacer(const Box& panel) : panel_(panel) {}
  void occupy(const Box& box) { taken_.push_back(box); }
  void occupy_point(double x, double y);
  // The box of the label, which is then taken.
  std::optional<Box> place(double x, double y, const std::string& text);

 private:
  Box panel_;
  std::vector<Box> taken_;
};

}  // namespace kv
