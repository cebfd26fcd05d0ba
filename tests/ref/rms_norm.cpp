#include "tests/ref/rms_norm.h"

#include <cmath>

namespace kv::ref {

std::vector<double> rms_norm(const std::vector<float>& input, const std::vector<float>& weight, double epsilon) {
  const size_t width = weight.size();
  std::vector<double> output(input.size());
  for (size_t first = 0; first < input.size(); first += width) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += double{input[first + i]} * input[first + i];
    const double root = std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (size_t i = 0; i < width; ++i) output[first + i] = input[first + i] / root * weight[i];
  }
  return output;
}

}  // namespace kv::ref
