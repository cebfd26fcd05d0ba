#pragma once

#include <vector>

namespace kv::ref {

// input [rows, width], width = weight.size().
std::vector<double> rms_norm(const std::vector<double>& input, const std::vector<float>& weight, double epsilon);

struct RmsNormGradient {
  std::vector<double> values;      // [rows, width]
  std::vector<double> magnitudes;  // Σ |terms| of each
};

// output_gradient and input [rows, width].
RmsNormGradient rms_norm_backward(const std::vector<float>& output_gradient, const std::vector<float>& input,
                                  const std::vector<float>& weight, double epsilon);

}  // namespace kv::ref
