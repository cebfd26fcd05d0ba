#pragma once

#include <functional>
#include <span>
#include <vector>

namespace kv::ref {

// A number and a bound on what is summed on the way to it.
struct Bounded {
  double value = 0;
  double magnitude = 0;
};

// A layer's gate (kernels/retention_gate.h) in double. hidden_weights may be empty: no W2.
struct RetentionGate {
  int kv_heads = 1;
  int embeddings = 1;
  std::vector<double> input_weights, input_bias;    // [hidden, width], [hidden]
  std::vector<double> hidden_weights, hidden_bias;  // [embeddings, hidden, hidden], [embeddings, hidden]
  std::vector<double> output_weights, output_bias;  // [kv_heads, hidden], [kv_heads]
  std::function<double(double)> stored = [](double x) { return x; };  // as the backend's activations are

  size_t hidden() const { return input_bias.size(); }
  size_t width() const { return input_weights.size() / input_bias.size(); }

  // Of each head, the logits of a token.
  std::vector<Bounded> logits(std::span<const double> x) const;
};

double log_sigmoid(double z);

// What a token's logits' gradients add to the gradients of everything, in the gate's own order, and to the inputs'.
struct RetentionGradients {
  explicit RetentionGradients(const RetentionGate& gate);
  void add(const RetentionGate& gate, std::span<const double> x, std::span<const double> logit_gradient,
           std::vector<Bounded>& input_gradient);

  std::vector<Bounded> input_weights, input_bias, hidden_weights, hidden_bias, output_weights, output_bias;
};

}  // namespace kv::ref
