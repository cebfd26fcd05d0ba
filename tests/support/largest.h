#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace kv::ref {

// The largest absolute value; NaN if one of them is.
inline double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) {
    if (std::isnan(value)) return value;
    most = std::max(most, std::abs(value));
  }
  return most;
}

}  // namespace kv::ref
