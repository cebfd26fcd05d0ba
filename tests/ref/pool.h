#pragma once

#include <vector>

namespace kv::ref {

// Brute force over every window; one vector.
std::vector<double> pool_max(const std::vector<float>& values, int kernel);
std::vector<double> pool_average(const std::vector<float>& values, int kernel);

}  // namespace kv::ref
