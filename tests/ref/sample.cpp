#include "tests/ref/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kv::ref {

namespace {

void normalise(std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& value : values) value /= sum;
}

}  // namespace

std::vector<double> sample_probabilities(const std::vector<float>& logits, double temperature, int top_k,
                                         double top_p) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (temperature == 0) top_k = 1;
  std::vector<double> p(logits.size(), 0.0);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (top_k > 0 && rank >= static_cast<size_t>(top_k)) break;
    p[order[rank]] = temperature == 0 ? 1 : std::exp((logits[order[rank]] - largest) / temperature);
  }
  normalise(p);
  double above = 0;
  for (const size_t id : order) {
    const double probability = p[id];
    if (above > 0 && above >= top_p) p[id] = 0;
    above += probability;
  }
  normalise(p);
  return p;
}

}  // namespace kv::ref
