#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace kv::ref {

// The largest absolute value; NaN if one of them is.
inline double largest(const std::vector<double>& values) {
  double magnitude = 0;
  for (const double value : values) {
    if (std::isnan(value)) return value;
    magnitude = std::max(magnitude, std::abs(value));
  }
  return magnitude;
}

}  // namespace kv::ref
