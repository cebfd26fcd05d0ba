#include "tests/ref/write_gate.h"

#include <cmath>
#include <numbers>
#include <vector>

namespace kv::ref {

double write_gate(std::span<const double> pre_rope_key, std::span<const double> key, std::span<const double> weights,
                  std::span<const double> bias, std::span<const double> output_weights, double output_bias,
                  const std::function<double(double)>& stored) {
  std::vector<double> x;
  for (const auto& vector : {pre_rope_key, key}) {
    double squares = 0;
    for (const double value : vector) squares += value * value;
    const double rms = std::sqrt(squares / static_cast<double>(vector.size()) + 1e-6);
    for (const double value : vector) x.push_back(stored(value / rms));
  }
  double y = output_bias;
  for (size_t h = 0; h < bias.size(); ++h) {
    double a = bias[h];
    for (size_t i = 0; i < x.size(); ++i) a += weights[h * x.size() + i] * x[i];
    y += output_weights[h] * a * 0.5 * (1 + std::erf(a / std::numbers::sqrt2));
  }
  return 1 / (1 + std::exp(-y));
}

}  // namespace kv::ref
