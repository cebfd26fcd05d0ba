#pragma once

#include <cstdint>
#include <vector>

#include "harness/metrics/metric.h"

namespace kv {

struct OrderedHead {
  int layer = 0;  // as the model counts them
  int head = 0;
  std::vector<float> gains;  // Ĩ in the policy's order
};

struct SplitGrid {
  int points = 20;
  int layers = 1;         // that losses are means over
  bool exact = true;      // the optimum too
  bool per_head = false;  // local ratios too
};

// The rows that budget_split.cpp lists, of one event: `at` for every removed fraction x = i / points, i in 0 … points.
std::vector<Measured> split_rows(const SplitGrid& grid, const std::vector<OrderedHead>& heads, const Measured& at);

}  // namespace kv
