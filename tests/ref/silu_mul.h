#pragma once

#include <cmath>

namespace kv::ref {

inline double silu_mul(double gate, double up) { return gate / (1 + std::exp(-gate)) * up; }

struct SiluMulGradient {
  double gate, up;
  double gate_magnitude;  // Σ |terms| of the first
};

inline SiluMulGradient silu_mul_backward(double output_gradient, double gate, double up) {
  const double above = 1 / (1 + std::exp(-gate)), below = 1 / (1 + std::exp(gate));
  const double through = output_gradient * up * above;
  return {.gate = through * (1 + gate * below),
          .up = output_gradient * gate * above,
          .gate_magnitude = std::abs(through) * (1 + std::abs(gate * below))};
}

}  // namespace kv::ref
