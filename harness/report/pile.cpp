#include "harness/report/pile.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "harness/clusters.h"

namespace kv {
namespace {

using Values = std::vector<std::array<double, 2>>;  // a sample's value, or numerator and denominator

std::array<Sum, 2> sums_of(const Places& sample) {
  std::array<Sum, 2> all;
  for (const auto& [place, sums] : sample) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i].add(sums[i]);
  }
  return all;
}

double sum_of(const Values& values, std::span<const int> picks, std::size_t part) {
  double sum = 0;
  for (const int pick : picks) sum += values[static_cast<std::size_t>(pick)][part];
  return sum;
}

double statistic(const Values& values, std::span<const int> picks, const Measure& measure) {
  if (!measure.ratio.empty()) return sum_of(values, picks, 0) / sum_of(values, picks, 1);
  if (measure.aggregate == Aggregate::kMean) return sum_of(values, picks, 0) / static_cast<double>(picks.size());
  std::vector<double> picked;
  for (const int pick : picks) picked.push_back(values[static_cast<std::size_t>(pick)][0]);
  if (measure.aggregate == Aggregate::kMedian) return quantile(picked, 0.5);
  return *std::max_element(picked.begin(), picked.end());
}

std::optional<Estimate> resampled(const Clusters& clusters, bool intervals,
                                  const std::function<double(std::span<const int>)>& number) {
  const std::span<const int> numbers = clusters.numbers();
  if (numbers.empty()) return std::nullopt;
  Estimate out =
      bootstrap(static_cast<int>(numbers.size()), number, {.resamples = intervals ? 2000 : 1, .clusters = numbers});
  if (!intervals || out.clusters < kFewestForAnInterval) out.interval.reset();
  return out;
}

// What stands for a place among another side's.
BestFit<Places::value_type> fit(std::size_t place, const Places& places, std::span<const Key> keys) {
  BestFit<Places::value_type> best;
  if (const auto same = places.find(place); same != places.end()) {
    best.offer(KeyMatch::kExact, *same);
  } else {
    for (const auto& other : places) best.offer(match(keys[place], keys[other.first]), other);
  }
  return best;
}

using Sides = std::vector<const Places*>;  // one sample of a cell, and of each that it is compared with

// The rows that all sides have.
struct Shared {
  std::vector<std::array<Sum, 2>> sums;  // of each side
  bool partly = false;                   // some rows are left over
  bool unclear = false;                  // some of those have several partners
};

Shared share(const Sides& sides, std::span<const Key> keys) {
  Shared out{.sums = std::vector<std::array<Sum, 2>>(sides.size())};
  std::vector<std::set<std::size_t>> used(sides.size());
  std::vector<const Places::value_type*> row;  // of each side
  for (const auto& own : *sides[0]) {
    row = {&own};
    for (std::size_t side = 1; side < sides.size(); ++side) {
      const BestFit<Places::value_type> best = fit(own.first, *sides[side], keys);
      out.unclear = out.unclear || best.several();
      if (best.found()) row.push_back(best.found());
    }
    if (row.size() < sides.size()) continue;
    for (std::size_t side = 0; side < sides.size(); ++side) {
      used[side].insert(row[side]->first);
      for (std::size_t i = 0; i < out.sums[side].size(); ++i) out.sums[side][i].add(row[side]->second[i]);
    }
  }
  for (std::size_t side = 0; side < sides.size(); ++side) {
    out.partly = out.partly || used[side].size() < sides[side]->size();
  }
  return out;
}

// The sample of all sides; none where one of them lacks it.
std::optional<Sides> sides_of(const Key& sample, const Places& own, std::span<const Term> others) {
  Sides sides = {&own};
  for (const Term& other : others) {
    const auto found = other.pile->index.find(sample);
    if (found == other.pile->index.end()) return std::nullopt;
    sides.push_back(&other.pile->samples[found->second]);
  }
  return sides;
}

// The number of each side; none where one of them lacks what it needs.
std::optional<Values> numbers_of(const Shared& shared, const Measure& measure) {
  Values numbers;
  for (const auto& sums : shared.sums) {
    const auto number = number_of(sums, measure);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

// Of numbers that cancel out only their rounding is left, which would be shown as a difference.
constexpr double kRounding = 1e-12;

// What the sides make together, over the samples picked. values: of the cell's own samples, then each other's.
double combined(std::span<const Values> values, std::span<const Term> others, std::span<const int> picks,
                const Measure& measure, bool relative) {
  double number = statistic(values[0], picks, measure), size = std::abs(number), last = 0;
  for (std::size_t i = 0; i < others.size(); ++i) {
    last = statistic(values[i + 1], picks, measure);
    number += others[i].sign * last;
    size += std::abs(last);
  }
  if (std::abs(number) < kRounding * size) number = 0;
  return relative ? 100 * number / std::abs(last) : number;
}

}  // namespace

void Sum::add(double value) { add({.total = value, .largest = value, .count = 1}); }

void Sum::add(const Sum& other) {
  if (other.count == 0) return;
  largest = count == 0 ? other.largest : std::max(largest, other.largest);
  total += other.total;
  count += other.count;
}

std::optional<std::array<double, 2>> number_of(const std::array<Sum, 2>& sums, const Measure& measure) {
  const auto& [a, b] = sums;
  if (a.count == 0) return std::nullopt;
  if (measure.ratio.empty()) return {{measure.aggregate == Aggregate::kMax ? a.largest : a.total / a.count, 0}};
  if (b.count == 0) return std::nullopt;
  return {{a.total, b.total}};
}

KeyMatch match(const Key& wanted, const Key& other) {
  KeyMatch out = KeyMatch::kExact;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (same_value(other[i], wanted[i])) continue;
    if (!other[i].empty()) return KeyMatch::kNone;
    out = KeyMatch::kLoose;
  }
  return out;
}

std::optional<Estimate> estimate(const Pile& pile, const Measure& measure, bool intervals) {
  Values values;
  Clusters clusters;
  for (std::size_t s = 0; s < pile.samples.size(); ++s) {
    const auto value = number_of(sums_of(pile.samples[s]), measure);
    if (!value) continue;
    values.push_back(*value);
    clusters.add(pile.documents[s]);
  }
  return resampled(clusters, intervals, [&](std::span<const int> picks) { return statistic(values, picks, measure); });
}

Difference estimate_difference(const Pile& pile, std::span<const Term> others, std::span<const Key> keys,
                               const Measure& measure, bool relative, bool intervals) {
  std::vector<Values> values(1 + others.size());  // of each side, the same samples
  Clusters clusters;
  Difference out;
  int all_unclear = 0;  // samples
  for (const auto& [sample, place] : pile.index) {
    const std::optional<Sides> sides = sides_of(sample, pile.samples[place], others);
    if (!sides) continue;
    const Shared shared = share(*sides, keys);
    const std::optional<Values> numbers = numbers_of(shared, measure);
    if (!numbers) {
      if (shared.unclear) ++all_unclear;
      continue;
    }
    for (std::size_t side = 0; side < values.size(); ++side) values[side].push_back((*numbers)[side]);
    clusters.add(pile.documents[place]);
    if (shared.unclear) {
      ++out.unpaired.unclear;
    } else if (shared.partly) {
      ++out.unpaired.partly;
    }
  }
  out.unpaired.unclear += all_unclear;
  const auto left_out = [&](const Pile& side) {
    return static_cast<int>(side.samples.size() - values[0].size()) - all_unclear;
  };
  out.unpaired.samples = left_out(pile);
  for (const Term& other : others) out.unpaired.partner_samples.push_back(left_out(*other.pile));
  out.estimate = resampled(clusters, intervals, [&](std::span<const int> picks) {
    return combined(values, others, picks, measure, relative);
  });
  if (out.estimate && !std::isfinite(out.estimate->value)) out.estimate.reset();  // in % of nothing
  return out;
}

}  // namespace kv
