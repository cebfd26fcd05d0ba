#pragma once

#include <vector>

namespace kv::ref {

std::vector<double> blend(const std::vector<float>& a, const std::vector<float>& b, double weight_a, double weight_b);

}  // namespace kv::ref
