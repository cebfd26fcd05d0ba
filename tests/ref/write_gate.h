#pragma once

#include <cmath>
#include <functional>
#include <span>
#include <vector>

namespace kv::ref {

// One head of kernels/write_gate.h and a token's keys.
struct GatedToken {
  std::span<const double> pre_rope_key, key;
  std::span<const double> weights;  // [hidden, 2 head_dim]
  std::span<const double> bias, output_weights;
  double output_bias = 0;
  std::function<double(double)> stored = [](double x) { return x; };  // x goes through it, as activations do
};

double write_gate(const GatedToken& token);

// A gradient, and a bound of what was added up to it.
struct Sum {
  double value = 0, size = 0;
  void add(double term, double bound) { value += term, size += std::abs(bound); }
};

struct GateGradients {
  explicit GateGradients(const GatedToken& like);

  std::vector<Sum> pre_rope_key, key;  // of the last token alone
  std::vector<Sum> weights, bias, output_weights;
  Sum output_bias;
};

// Adds up parameters' gradients. The gate is as the forward op has rounded it, which says on which side of the clamp
// the token is.
void write_gate_backward(const GatedToken& token, double gate, double log_gate_gradient, double gate_gradient,
                         GateGradients& gradients);

}  // namespace kv::ref
