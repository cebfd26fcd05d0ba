#pragma once

#include <functional>
#include <span>

namespace kv::ref {

// One head's gate (kernels/write_gate.h) of a token whose keys have these values: weights [hidden, 2 head_dim]. x goes
// through `stored`, as the backend's activations do.
double write_gate(
    std::span<const double> pre_rope_key, std::span<const double> key, std::span<const double> weights,
    std::span<const double> bias, std::span<const double> output_weights, double output_bias,
    const std::function<double(double)>& stored = [](double x) { return x; });

}  // namespace kv::ref
