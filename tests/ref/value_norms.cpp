#include "tests/ref/value_norms.h"

#include <cmath>

namespace kv::ref {

std::vector<double> value_norms(const std::vector<float>& values, int dim, const std::vector<float>& weights) {
  std::vector<double> scores;
  for (size_t j = 0; j * static_cast<size_t>(dim) < values.size(); ++j) {
    double square = 0;
    for (size_t d = j * static_cast<size_t>(dim); d < (j + 1) * static_cast<size_t>(dim); ++d) {
      square += double(values[d]) * values[d];
    }
    scores.push_back((weights.empty() ? 1.0 : weights[j]) * std::sqrt(square));
  }
  return scores;
}

}  // namespace kv::ref
