#pragma once

#include <vector>

namespace kv::ref {

// input [rows, width], width = weight.size().
std::vector<double> rms_norm(const std::vector<float>& input, const std::vector<float>& weight, double epsilon);

}  // namespace kv::ref
