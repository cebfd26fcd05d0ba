#include "tests/ref/pool.h"

#include <algorithm>
#include <cmath>

namespace kv::ref {

std::vector<double> pool_max(const std::vector<float>& values, int kernel) {
  const int n = static_cast<int>(values.size());
  std::vector<double> out(n, -INFINITY);
  for (int j = 0; j < n; ++j) {
    for (int u = j - kernel / 2; u <= j + kernel / 2; ++u) {
      if (u >= 0 && u < n) out[j] = std::max(out[j], double(values[u]));
    }
  }
  return out;
}

std::vector<double> pool_average(const std::vector<float>& values, int kernel) {
  const int n = static_cast<int>(values.size());
  std::vector<double> out(n);
  for (int j = 0; j < n; ++j) {
    for (int u = j - kernel / 2; u <= j + kernel / 2; ++u) {
      if (u >= 0 && u < n) out[j] += double(values[u]) / kernel;
    }
  }
  return out;
}

}  // namespace kv::ref
