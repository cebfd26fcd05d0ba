#pragma once

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "harness/report/plan.h"
#include "harness/statistics.h"

namespace kv {

// The least and the largest of what is drawn, over all panels, so that they can be compared.
class Range {
 public:
  explicit Range(Scale scale) : log_(scale != Scale::kLinear) {}
  void add(double value);
  void add(const Estimate& estimate);  // and the ends of its interval
  bool empty() const { return low_ > high_; }
  // With a share of its extent as air on both sides.
  std::array<double, 2> padded(double share) const;

 private:
  bool log_;
  double low_ = std::numeric_limits<double>::infinity(), high_ = -std::numeric_limits<double>::infinity();
};

struct Tick {
  double value = 0;
  std::string text;
};

// Between values and pixels: range[0] stands at pixels[0].
class PlotAxis {
 public:
  PlotAxis(Scale scale, std::array<double, 2> range, std::array<double, 2> pixels);

  double at(double value) const;  // of a value that a logarithmic axis has no place for: its lower end
  double value_at(double pixel) const;
  Scale scale() const { return scale_; }
  const std::array<double, 2>& range() const { return range_; }
  const std::array<double, 2>& pixels() const { return pixels_; }
  PlotAxis placed(std::array<double, 2> pixels) const { return {scale_, range_, pixels}; }
  // Round numbers, at most about `count` of them: steps of 1, 2 or 5 times a power of ten; powers of the base on a
  // logarithmic axis, and 1, 2 and 5 times powers of ten where it is short.
  std::vector<Tick> ticks(int count) const;

 private:
  Scale scale_;
  std::array<double, 2> range_, pixels_;
};

// A number beside an axis: 0.25, 2048, 100k, 1.5M, 2e-4.
std::string tick_text(double value);

}  // namespace kv
