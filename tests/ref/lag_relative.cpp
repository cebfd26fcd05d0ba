#include "tests/ref/lag_relative.h"

#include <algorithm>
#include <cmath>

namespace kv::ref {

namespace {

// Softmax over the `lag` entries from `first` on of their spreads within the range of the next `lag`.
std::vector<double> softmax_of_spreads(const std::vector<float>& x, int dim, int first, int lag) {
  std::vector<double> spreads;
  for (int i = first; i < first + lag; ++i) {
    std::vector<double> relative;
    for (int d = 0; d < dim; ++d) {
      double low = INFINITY, high = -INFINITY;
      for (int j = first + lag; j < first + 2 * lag; ++j) {
        low = std::min<double>(low, x[j * dim + d]);
        high = std::max<double>(high, x[j * dim + d]);
      }
      relative.push_back(high > low ? (x[i * dim + d] - low) / (high - low) : 0);
    }
    double mean = 0, squares = 0;
    for (const double value : relative) mean += value / dim;
    for (const double value : relative) squares += (value - mean) * (value - mean);
    spreads.push_back(dim > 1 ? std::sqrt(squares / (dim - 1)) : 0);
  }
  const double largest = *std::max_element(spreads.begin(), spreads.end());
  double total = 0;
  for (const double value : spreads) total += std::exp(value - largest);
  for (double& value : spreads) value = std::exp(value - largest) / total;
  return spreads;
}

}  // namespace

std::vector<double> lag_shares(const std::vector<float>& keys, const std::vector<float>& values, int dim, int sinks,
                               int lag) {
  const int n = static_cast<int>(keys.size()) / dim;
  std::vector<double> scores(static_cast<size_t>(n), 1.0);
  if (n < sinks + 2 * lag) {
    for (int j = sinks; j < n; ++j) scores[j] = double(j - sinks) / (n - sinks);
    return scores;
  }
  for (int first = sinks; first + 2 * lag <= n; first += lag) {
    const std::vector<double> of_keys = softmax_of_spreads(keys, dim, first, lag);
    const std::vector<double> of_values = softmax_of_spreads(values, dim, first, lag);
    for (int i = 0; i < lag; ++i) scores[first + i] = (of_keys[i] + of_values[i]) / 2;
  }
  return scores;
}

std::vector<double> lag_ranks(const std::vector<float>& keys, const std::vector<float>& values, int dim, int sinks,
                              int lag) {
  const std::vector<double> shares = lag_shares(keys, values, dim, sinks, lag);
  const int n = static_cast<int>(shares.size());
  std::vector<double> ranks = shares;
  if (n < sinks + 2 * lag) return ranks;
  for (int first = sinks; first + 2 * lag <= n; first += lag) {
    for (int i = 0; i < lag; ++i) {
      int below = 0;
      for (int j = 0; j < lag; ++j) {
        const double a = shares[first + j], b = shares[first + i];
        if (a < b || (a == b && j < i)) ++below;
      }
      ranks[first + i] = double(below) / lag;
    }
  }
  return ranks;
}

}  // namespace kv::ref
