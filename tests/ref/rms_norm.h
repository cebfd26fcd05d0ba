#pragma once

#include <cstdint>
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

// Of a result in f32, relative to the magnitude: a sum over the row is sixteen or more side by side, where each term
// goes through width / 16 additions, then at most 32. One such sum stands under a root to the third power, another is
// of products of three; root, quotients, products and sums beside them are 17.
inline double rms_norm_backward_roundings(int64_t width) { return 2.5 * (static_cast<double>(width) / 16 + 32) + 17; }

}  // namespace kv::ref
