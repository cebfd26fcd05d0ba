#include "tests/ref/rms_norm.h"

#include <cmath>

namespace kv::ref {

std::vector<double> rms_norm(const std::vector<double>& input, const std::vector<float>& weight, double epsilon) {
  const size_t width = weight.size();
  std::vector<double> output(input.size());
  for (size_t first = 0; first < input.size(); first += width) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += input[first + i] * input[first + i];
    const double root = std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (size_t i = 0; i < width; ++i) output[first + i] = input[first + i] / root * weight[i];
  }
  return output;
}

RmsNormGradient rms_norm_backward(const std::vector<float>& output_gradient, const std::vector<float>& input,
                                  const std::vector<float>& weight, double epsilon) {
  const size_t width = weight.size();
  RmsNormGradient gradient;
  for (size_t first = 0; first < input.size(); first += width) {
    double squares = 0, along = 0, along_magnitude = 0;
    for (size_t i = 0; i < width; ++i) {
      const double x = input[first + i], term = double{output_gradient[first + i]} * weight[i] * x;
      squares += x * x;
      along += term;
      along_magnitude += std::abs(term);
    }
    const auto count = static_cast<double>(width);
    const double root = std::sqrt(squares / count + epsilon);
    for (size_t i = 0; i < width; ++i) {
      const double x = input[first + i], through = double{output_gradient[first + i]} * weight[i] / root;
      const double pull = x / (count * root * root * root);
      gradient.values.push_back(through - pull * along);
      gradient.magnitudes.push_back(std::abs(through) + std::abs(pull) * along_magnitude);
    }
  }
  return gradient;
}

}  // namespace kv::ref
