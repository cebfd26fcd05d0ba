#include "tests/ref/future_scores.h"

#include <algorithm>
#include <cmath>

namespace kv::ref {

std::vector<double> future_table(const std::vector<float>& input, int blocks, int tokens, int merge, int horizon,
                                 double scale, Merge how) {
  const int merged = (blocks + merge - 1) / merge;
  std::vector<double> out(size_t(merged) * tokens, -INFINITY);
  for (int b = 0; b < merged; ++b) {
    for (int later = b; later < merged && (horizon <= 0 || later < b + horizon); ++later) {
      for (int j = 0; j < tokens; ++j) {
        double value = how == Merge::kSum ? 0 : -INFINITY;
        for (int i = later * merge; i < std::min(blocks, (later + 1) * merge); ++i) {
          const double x = input[i * tokens + j];
          value = how == Merge::kSum ? value + x : std::max(value, x);
        }
        out[b * tokens + j] = std::max(out[b * tokens + j], value * scale);
      }
    }
  }
  return out;
}

}  // namespace kv::ref
