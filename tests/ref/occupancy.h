#pragma once

#include <vector>

namespace kv::ref {

// Sums of terms a · e^x, x being an age times log β, beside Σ |a| (1 + |x|) e^x: what the roundings of a, x and e^x are
// rounding errors of.
struct Occupancy {
  std::vector<double> values;
  std::vector<double> magnitudes;
};

// S of every token of one head's sequence, pair by pair.
Occupancy occupancy(const std::vector<float>& log_beta);

// ∂/∂log β of Σ_t slopes[t] · S(t), pair by pair.
Occupancy occupancy_gradient(const std::vector<float>& log_beta, const std::vector<float>& slopes);

}  // namespace kv::ref
