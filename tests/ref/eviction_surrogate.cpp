#include "tests/ref/eviction_surrogate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kv::ref {

namespace {

// Probability of each slot to be the next that is evicted: 0 where it cannot be.
std::vector<double> chances(const std::vector<double>& scores, const std::vector<uint8_t>& possible) {
  std::vector<double> result(scores.size(), 0.0);
  double lowest = INFINITY, sum = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (possible[i]) lowest = std::min(lowest, scores[i]);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (possible[i]) sum += result[i] = std::exp(lowest - scores[i]);
  }
  for (double& chance : result) chance /= sum;
  return result;
}

// Not the logarithm of the chance, which may be too small to be a number.
double log_chance(const std::vector<double>& scores, const std::vector<uint8_t>& possible, int64_t slot) {
  double largest = 0, sum = 0;  // of φ − φ_slot; its own is 0
  for (size_t i = 0; i < scores.size(); ++i) {
    if (possible[i]) largest = std::max(largest, scores[slot] - scores[i]);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (possible[i]) sum += std::exp(scores[slot] - scores[i] - largest);
  }
  return -largest - std::log(sum);
}

}  // namespace

EvictionSurrogate eviction_surrogate(const DrawnRow& row) {
  EvictionSurrogate result{.gradient = std::vector<double>(row.scores.size(), 0.0)};
  if (row.drawn.empty()) return result;
  std::vector<uint8_t> possible = row.candidates;
  if (possible.empty()) possible.assign(row.scores.size(), 1);
  for (const int64_t slot : row.drawn) {
    const double l = log_chance(row.scores, possible, slot);
    const double change = l - log_chance(row.old_scores, possible, slot);
    const double e = log_chance(row.reference_scores, possible, slot) - l;
    const double ratio = std::exp(std::min(10.0, std::max(-10.0, change)));
    const double bounded = std::min(1 + row.clip, std::max(1 - row.clip, ratio));
    const bool cut = row.advantage > 0 ? ratio > 1 + row.clip : row.advantage < 0 && ratio < 1 - row.clip;
    result.loss -= row.advantage * (cut ? bounded : ratio);
    result.kl += std::exp(e) - e - 1;
    result.clipped += cut;
    const double from_ratio = cut || std::abs(change) > 10 ? 0 : -row.advantage * ratio;
    const double slope = from_ratio + row.kl_weight * (1 - std::exp(e));
    const std::vector<double> chance = chances(row.scores, possible);
    for (size_t i = 0; i < chance.size(); ++i) result.gradient[i] += slope * chance[i];
    result.gradient[slot] -= slope;
    if (!row.candidates.empty()) possible[slot] = 0;
  }
  const auto draws = static_cast<double>(row.drawn.size());
  result.kl /= draws;
  result.loss = result.loss / draws + row.kl_weight * result.kl;
  result.clipped /= draws;
  for (double& g : result.gradient) g /= draws;
  return result;
}

}  // namespace kv::ref
