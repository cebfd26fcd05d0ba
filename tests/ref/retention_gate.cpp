#include "tests/ref/retention_gate.h"

#include <cmath>

namespace kv::ref {

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// No slope of SiLU is above 1.1, and no slope of that above 0.5: what moves a unit's sum moves both by no more.
constexpr double kSlope = 1.1, kCurvature = 0.5;

Bounded silu(const Bounded& x) { return {x.value * sigmoid(x.value), kSlope * x.magnitude}; }

Bounded silu_slope(const Bounded& x) {
  const double s = sigmoid(x.value);
  return {s * (1 + x.value * (1 - s)), kSlope + kCurvature * x.magnitude};
}

Bounded operator*(const Bounded& a, const Bounded& b) { return {a.value * b.value, a.magnitude * b.magnitude}; }
void operator+=(Bounded& sum, const Bounded& term) {
  sum.value += term.value;
  sum.magnitude += term.magnitude;
}
Bounded exact(double x) { return {x, std::abs(x)}; }

// weights [bias.size(), x.size()]
std::vector<Bounded> layer(std::span<const double> weights, std::span<const double> bias, std::span<const Bounded> x) {
  std::vector<Bounded> sums;
  for (size_t u = 0; u < bias.size(); ++u) {
    sums.push_back(exact(bias[u]));
    for (size_t i = 0; i < x.size(); ++i) sums[u] += exact(weights[u * x.size() + i]) * x[i];
  }
  return sums;
}

std::vector<Bounded> silu_of(const std::vector<Bounded>& sums) {
  std::vector<Bounded> all;
  for (const Bounded& sum : sums) all.push_back(silu(sum));
  return all;
}

struct Trunk {
  Trunk(const RetentionGate& gate, std::span<const double> inputs) : deep(!gate.hidden_weights.empty()) {
    for (const double value : inputs) x.push_back(exact(value));
    first = layer(gate.input_weights, gate.input_bias, x);
    a = silu_of(first);
    for (Bounded& unit : a) unit.value = gate.stored(unit.value);
    if (deep) second = layer(gate.hidden_weights, gate.hidden_bias, a);
    e = deep ? silu_of(second) : a;
  }
  bool deep;
  std::vector<Bounded> x, first, a, second, e;  // sums and what SiLU makes of them
};

size_t offset(const RetentionGate& gate, size_t head) { return gate.embeddings == 1 ? 0 : head * gate.hidden(); }

}  // namespace

double log_sigmoid(double z) { return std::min(z, 0.0) - std::log1p(std::exp(-std::abs(z))); }

std::vector<Bounded> RetentionGate::logits(std::span<const double> x) const {
  const Trunk trunk(*this, x);
  std::vector<Bounded> all;
  for (size_t head = 0; head < static_cast<size_t>(kv_heads); ++head) {
    all.push_back(exact(output_bias[head]));
    for (size_t u = 0; u < hidden(); ++u) {
      all[head] += exact(output_weights[head * hidden() + u]) * trunk.e[offset(*this, head) + u];
    }
  }
  return all;
}

RetentionGradients::RetentionGradients(const RetentionGate& gate)
    : input_weights(gate.input_weights.size()),
      input_bias(gate.input_bias.size()),
      hidden_weights(gate.hidden_weights.size()),
      hidden_bias(gate.hidden_bias.size()),
      output_weights(gate.output_weights.size()),
      output_bias(gate.output_bias.size()) {}

void RetentionGradients::add(const RetentionGate& gate, std::span<const double> x,
                             std::span<const double> logit_gradient, std::vector<Bounded>& input_gradient) {
  const Trunk trunk(gate, x);
  const size_t hidden = gate.hidden(), width = gate.width();
  std::vector<Bounded> of_e(trunk.e.size());
  for (size_t head = 0; head < static_cast<size_t>(gate.kv_heads); ++head) {
    const Bounded by = exact(logit_gradient[head]);
    output_bias[head] += by;
    for (size_t u = 0; u < hidden; ++u) {
      const size_t unit = offset(gate, head) + u;
      output_weights[head * hidden + u] += by * trunk.e[unit];
      of_e[unit] += by * exact(gate.output_weights[head * hidden + u]);
    }
  }
  std::vector<Bounded> of_a(hidden);
  if (!trunk.deep) of_a = of_e;
  for (size_t unit = 0; trunk.deep && unit < of_e.size(); ++unit) {
    const Bounded by = of_e[unit] * silu_slope(trunk.second[unit]);
    hidden_bias[unit] += by;
    for (size_t i = 0; i < hidden; ++i) {
      hidden_weights[unit * hidden + i] += by * trunk.a[i];
      of_a[i] += by * exact(gate.hidden_weights[unit * hidden + i]);
    }
  }
  for (size_t unit = 0; unit < hidden; ++unit) {
    const Bounded by = of_a[unit] * silu_slope(trunk.first[unit]);
    input_bias[unit] += by;
    for (size_t i = 0; i < width; ++i) {
      input_weights[unit * width + i] += by * trunk.x[i];
      input_gradient[i] += by * exact(gate.input_weights[unit * width + i]);
    }
  }
}

}  // namespace kv::ref
