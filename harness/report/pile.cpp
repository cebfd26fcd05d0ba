#include "harness/report/pile.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace kv {
namespace {

using Values = std::vector<std::array<double, 2>>;  // a sample's value, or numerator and denominator

// Of a sample that lacks a metric of the ratio: none.
std::optional<std::array<double, 2>> value_of(const std::array<Sum, 2>& sums, const Measure& measure) {
  const auto& [a, b] = sums;
  if (a.count == 0) return std::nullopt;
  if (measure.ratio.empty()) return {{measure.aggregate == Aggregate::kMax ? a.largest : a.total / a.count, 0}};
  if (b.count == 0) return std::nullopt;
  return {{a.total, b.total}};
}

double sum_of(const Values& values, std::span<const int> picks, std::size_t which) {
  double sum = 0;
  for (const int pick : picks) sum += values[static_cast<std::size_t>(pick)][which];
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

std::optional<Estimate> resampled(std::size_t samples, bool intervals,
                                  const std::function<double(std::span<const int>)>& number) {
  if (samples == 0) return std::nullopt;
  Estimate out = bootstrap(static_cast<int>(samples), number, {.resamples = intervals ? 2000 : 1});
  if (!intervals) out.interval.reset();
  return out;
}

}  // namespace

void Sum::add(double value) {
  largest = count == 0 ? value : std::max(largest, value);
  total += value;
  ++count;
}

std::optional<Estimate> estimate(const Pile& pile, const Measure& measure, bool intervals) {
  Values values;
  for (const auto& sums : pile.samples) {
    if (const auto value = value_of(sums, measure)) values.push_back(*value);
  }
  return resampled(values.size(), intervals,
                   [&](std::span<const int> picks) { return statistic(values, picks, measure); });
}

std::optional<Estimate> estimate_difference(const Pile& pile, const Pile& other, const Measure& measure, bool relative,
                                            bool intervals) {
  Values own, theirs;
  for (const auto& [sample, place] : pile.index) {
    const auto partner = other.index.find(sample);
    if (partner == other.index.end()) continue;
    const auto a = value_of(pile.samples[place], measure);
    const auto b = value_of(other.samples[partner->second], measure);
    if (!a || !b) continue;
    own.push_back(*a);
    theirs.push_back(*b);
  }
  auto difference = resampled(own.size(), intervals, [&](std::span<const int> picks) {
    const double reference = statistic(theirs, picks, measure);
    const double less = statistic(own, picks, measure) - reference;
    return relative ? 100 * less / std::abs(reference) : less;
  });
  if (difference && !std::isfinite(difference->value)) return std::nullopt;  // in % of nothing
  return difference;
}

}  // namespace kv
