#include "tests/support/budget_problems.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace kv::ref {

namespace {

// A sum of uniforms is close enough to normal, and the same on every machine.
double about_normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.uniform();
  return sum;
}

std::vector<float> noisy(Random& random, int entries) {
  std::vector<std::pair<double, float>> ranked(static_cast<size_t>(entries));
  for (auto& [rank, gain] : ranked) {
    const double log_gain = 1.5 * about_normal(random);
    gain = static_cast<float>(std::exp(log_gain));
    rank = -(log_gain + 1.5 * about_normal(random));
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<float> gains;
  for (const auto& [rank, gain] : ranked) gains.push_back(gain);
  return gains;
}

}  // namespace

std::vector<float> draw_gains(Random& random, GainKind kind, int entries) {
  std::vector<float> gains = noisy(random, entries);
  switch (kind) {
    case GainKind::kNoisy:
      break;
    case GainKind::kSorted:
      std::sort(gains.begin(), gains.end(), std::greater<>());
      break;
    case GainKind::kPlateaus:
      for (float& gain : gains) gain = static_cast<float>(random.below(4));
      break;
    case GainKind::kZeros:
      std::fill(gains.begin() + entries / 3, gains.end(), 0.0f);
      break;
    case GainKind::kEqual:
      std::fill(gains.begin(), gains.end(), 1.0f);
      break;
    case GainKind::kRising:
      std::sort(gains.begin(), gains.end());
      break;
  }
  return gains;
}

std::vector<HeadGains> BudgetProblem::heads() const {
  std::vector<HeadGains> views;
  for (size_t h = 0; h < gains.size(); ++h) {
    views.push_back({.gains = gains[h], .least = least.empty() ? 0 : least[h]});
  }
  return views;
}

BudgetProblem draw_budget_problem(Random& random, int heads, int most_entries) {
  BudgetProblem problem;
  for (int h = 0; h < heads; ++h) {
    const auto kind = static_cast<GainKind>(random.below(kGainKinds));
    problem.gains.push_back(draw_gains(random, kind, random.between(0, most_entries + 1)));
    problem.least.push_back(random.between(0, std::min(static_cast<int>(problem.gains.back().size()), 3) + 1));
  }
  return problem;
}

}  // namespace kv::ref
