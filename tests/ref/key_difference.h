#pragma once

#include <vector>

namespace kv::ref {

// −cos(k_j, mean of unit keys) of one row.
std::vector<double> key_difference(const std::vector<float>& keys, int dim);

}  // namespace kv::ref
