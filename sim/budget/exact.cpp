#include "sim/budget/exact.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/budget/search.h"

// With λ the hulls' slope at the total and v_h a vertex of head h on the tangent of slope −λ, the excess of a count,
//   r_h(b) = L_h(b) − L_h(v_h) + λ (b − v_h) >= 0,
// is its height above the tangent, and Σ_h L_h(b_h) = Σ_h r_h(b_h) + a constant for all splits of one sum. So the
// optimum is the split of smallest Σ r, and no head of a split of excess Σ r <= C, nor any subset of its heads, has an
// excess above C: with a cap C, only the counts of excess <= C are options, and only partial sums <= C are states.
// Where the capped search finds a split, all better ones were within its cap too. Otherwise the cap grows, up to the
// excess of the greedy split, at which that one is found. States are deviations Σ (b_h − v_h), of which few remain: a
// deviation costs by the hulls' curvature.
//
// Rounding: L is a sum of at most n terms >= 0, r takes five more operations, and a split adds H of them, so Σ r is off
// by at most `slack` = 2^-52 (n + H + 8) Σ_h (L_h(least) + λ entries). A split that the cap shut out has a computed Σ r
// above that of the split found, so it is better by at most 2 slack. The caps are widened by as much: the last one lets
// the greedy split through.

namespace kv {

namespace {

constexpr double kFirstCap = 1.0 / 256;  // of the greedy split's excess
constexpr double kCapGrowth = 4;

std::vector<Option> options_of(const HeadGains& head, int32_t vertex, double slope, double cap) {
  const auto entries = static_cast<int32_t>(head.gains.size());
  std::vector<double> losses(static_cast<size_t>(entries - head.least) + 1, 0.0);
  for (int32_t b = entries; b-- > head.least;) {
    const auto i = static_cast<size_t>(b - head.least);
    losses[i] = losses[i + 1] + head.gains[static_cast<size_t>(b)];
  }
  std::vector<Option> options;
  for (int32_t b = entries; b >= head.least; --b) {
    const double change =
        losses[static_cast<size_t>(b - head.least)] - losses[static_cast<size_t>(vertex - head.least)];
    const double excess = std::max(0.0, change + slope * (b - vertex));
    if (excess <= cap) options.push_back({.deviation = b - vertex, .excess = excess});
  }
  return options;
}

Options capped(const Options& options, double cap) {
  Options result(options.size());
  for (size_t h = 0; h < options.size(); ++h) {
    std::copy_if(options[h].begin(), options[h].end(), std::back_inserter(result[h]),
                 [&](const Option& option) { return option.excess <= cap; });
  }
  return result;
}

double rounding_slack(const HullSolver& hull, double slope) {
  double scale = 0;
  size_t most_entries = 0;
  for (size_t h = 0; h < hull.heads().size(); ++h) {
    const size_t entries = hull.heads()[h].gains.size();
    most_entries = std::max(most_entries, entries);
    scale += hull.hulls()[h].losses.front() + slope * static_cast<double>(entries);
  }
  return std::numeric_limits<double>::epsilon() * static_cast<double>(most_entries + hull.heads().size() + 8) * scale;
}

}  // namespace

BudgetSplit solve_exact(const HullSolver& hull, int64_t total, const ExactLimits& limits) {
  const auto heads = hull.heads();
  for (size_t h = 0; h < heads.size(); ++h) {
    if (heads[h].gains.size() <= kMostExactEntries) continue;
    throw UserError(fmt::format("budget: head {} has {} entries: expected at most {} for an exact split", h,
                                heads[h].gains.size(), kMostExactEntries));
  }
  BudgetSplit split = hull.at(total);
  // On the hulls, and the lexicographically largest split that is: the lower heads take what has equal gain.
  if (split.loss <= split.bound) return split;
  std::vector<int32_t> vertices;
  for (size_t h = 0; h < heads.size(); ++h) {
    const auto& counts = hull.hulls()[h].counts;
    vertices.push_back(*(std::upper_bound(counts.begin(), counts.end(), split.counts[h]) - 1));
  }
  int64_t target = total;
  for (const int32_t vertex : vertices) target -= vertex;
  const double margin = 2 * rounding_slack(hull, split.slope);
  const double excess = split.loss - split.bound;
  Options all;
  for (size_t h = 0; h < heads.size(); ++h) {
    all.push_back(options_of(heads[h], vertices[h], split.slope, excess + margin));
  }
  std::vector<int64_t> deviations;
  for (double share = kFirstCap; deviations.empty(); share *= kCapGrowth) {
    KV_CHECK(share < 2 * kCapGrowth);
    const double cap = std::min(share, 1.0) * excess + margin;
    deviations = search_capped(capped(all, cap), target, cap, limits);
  }
  std::vector<int32_t> counts;
  for (size_t h = 0; h < heads.size(); ++h) counts.push_back(vertices[h] + static_cast<int32_t>(deviations[h]));
  const double loss = hull.loss(counts);
  if (loss > split.loss) return split;  // equal but for rounding
  split.counts = std::move(counts);
  split.loss = std::max(split.bound, loss);
  return split;
}

}  // namespace kv
