#include "tests/ref/write_gate.h"

#include <cstddef>
#include <numbers>

namespace kv::ref {

namespace {

double rms(std::span<const double> vector) {
  double squares = 0;
  for (const double value : vector) squares += value * value;
  return std::sqrt(squares / static_cast<double>(vector.size()) + 1e-6);
}

std::vector<double> inputs(const GatedToken& token) {
  std::vector<double> x;
  for (const auto& vector : {token.pre_rope_key, token.key}) {
    const double norm = rms(vector);
    for (const double value : vector) x.push_back(token.stored(value / norm));
  }
  return x;
}

double unit(const GatedToken& token, std::span<const double> x, size_t h) {
  double a = token.bias[h];
  for (size_t i = 0; i < x.size(); ++i) a += token.weights[h * x.size() + i] * x[i];
  return a;
}

double normal_below(double a) { return 0.5 * std::erfc(-a / std::numbers::sqrt2); }
double normal_density(double a) { return std::exp(-a * a / 2) / std::sqrt(2 * std::numbers::pi); }

// Of v / rms(v), from the gradient of that.
std::vector<Sum> through_norm(std::span<const double> vector, std::span<const Sum> gradient) {
  const double scale = 1 / rms(vector), count = static_cast<double>(vector.size());
  Sum along;
  for (size_t d = 0; d < vector.size(); ++d) {
    along.add(gradient[d].value * vector[d] / count, gradient[d].size * vector[d] / count);
  }
  std::vector<Sum> result(vector.size());
  for (size_t d = 0; d < vector.size(); ++d) {
    const double pull = scale * scale * scale * vector[d];
    result[d].add(scale * gradient[d].value, scale * gradient[d].size);
    result[d].add(-pull * along.value, pull * along.size);
  }
  return result;
}

}  // namespace

double write_gate(const GatedToken& token) {
  const std::vector<double> x = inputs(token);
  double y = token.output_bias;
  for (size_t h = 0; h < token.bias.size(); ++h) {
    const double a = unit(token, x, h);
    y += token.output_weights[h] * a * normal_below(a);
  }
  return 1 / (1 + std::exp(-y));
}

GateGradients::GateGradients(const GatedToken& like)
    : weights(like.weights.size()), bias(like.bias.size()), output_weights(like.bias.size()) {}

void write_gate_backward(const GatedToken& token, double gate, double log_gate_gradient, double gate_gradient,
                         GateGradients& gradients) {
  constexpr double kSteepest = 1.13;  // of GELU
  const double by_log = gate >= 1e-3F ? (1 - gate) * log_gate_gradient : 0, by_gate = gate * (1 - gate) * gate_gradient;
  const double dy = by_log + by_gate, dy_size = std::abs(by_log) + std::abs(by_gate);
  const std::vector<double> x = inputs(token);
  std::vector<Sum> dx(x.size());
  gradients.output_bias.add(dy, dy_size);
  for (size_t h = 0; h < token.bias.size(); ++h) {
    const double a = unit(token, x, h), w = token.output_weights[h];
    const double da = dy * w * (normal_below(a) + a * normal_density(a)), da_size = dy_size * w * kSteepest;
    // A GELU is off by its slope times what its argument is off by, which for small ones is more than itself.
    gradients.output_weights[h].add(dy * a * normal_below(a), dy_size * (1 + std::abs(a)));
    gradients.bias[h].add(da, da_size);
    for (size_t i = 0; i < x.size(); ++i) {
      const double weight = token.weights[h * x.size() + i];
      gradients.weights[h * x.size() + i].add(da * x[i], da_size * x[i]);
      dx[i].add(da * weight, da_size * weight);
    }
  }
  const size_t dim = token.key.size();
  gradients.pre_rope_key = through_norm(token.pre_rope_key, std::span(dx).first(dim));
  gradients.key = through_norm(token.key, std::span(dx).last(dim));
}

}  // namespace kv::ref
