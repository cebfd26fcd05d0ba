#include "tests/ref/rate_entries.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace kv::ref {

double rate_entry(std::span<const double> parameters, std::span<const double> x, int hidden) {
  const auto units = static_cast<size_t>(hidden);
  const std::span<const double> bias = parameters.subspan(x.size() * units), output = bias.subspan(units);
  double y = output[units];
  for (size_t h = 0; h < units; ++h) {
    double a = bias[h];
    for (size_t d = 0; d < x.size(); ++d) a += x[d] * parameters[d * units + h];
    y += output[h] * a * 0.5 * (1 + std::erf(a / std::numbers::sqrt2));
  }
  return y;
}

}  // namespace kv::ref
