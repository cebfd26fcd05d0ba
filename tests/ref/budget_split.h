#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

// The loss of one head by count: [entries + 1]; +inf where a count is not allowed.
using LossTable = std::vector<double>;

LossTable loss_table(const std::vector<float>& gains, int32_t least = 0);

// The largest convex function below a table, by its definition: at b, the lowest chord between two points around b.
LossTable lower_hull(const LossTable& losses);

// The smallest loss over all splits of a sum, and the lexicographically largest counts that have it (to the bit); loss
// +inf where no split has that sum.
struct Split {
  std::vector<int32_t> counts;
  double loss = 0;
};
Split split_by_enumeration(const std::vector<LossTable>& heads, int32_t total);
Split split_by_knapsack(const std::vector<LossTable>& heads, int32_t total);  // the textbook table

}  // namespace kv::ref
