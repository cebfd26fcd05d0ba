#include "tests/ref/occupancy.h"

#include <cmath>
#include <cstddef>

namespace kv::ref {

namespace {

void add(Occupancy& sums, size_t at, double factor, double exponent) {
  const double term = factor * std::exp(exponent);
  sums.values[at] += term;
  sums.magnitudes[at] += std::abs(term) * (1 + std::abs(exponent));
}

Occupancy zeros(size_t count) {
  return {.values = std::vector<double>(count, 0.0), .magnitudes = std::vector<double>(count, 0.0)};
}

}  // namespace

Occupancy occupancy(const std::vector<float>& log_beta) {
  Occupancy sums = zeros(log_beta.size());
  for (size_t t = 0; t < log_beta.size(); ++t) {
    for (size_t i = 0; i <= t; ++i) add(sums, t, 1, static_cast<double>(t - i) * log_beta[i]);
  }
  return sums;
}

Occupancy occupancy_gradient(const std::vector<float>& log_beta, const std::vector<float>& slopes) {
  Occupancy sums = zeros(log_beta.size());
  for (size_t i = 0; i < log_beta.size(); ++i) {
    for (size_t t = i; t < log_beta.size(); ++t) {
      const auto age = static_cast<double>(t - i);
      add(sums, i, slopes[t] * age, age * log_beta[i]);
    }
  }
  return sums;
}

}  // namespace kv::ref
