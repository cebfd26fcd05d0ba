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

// The rows that two samples share, and how many places of either are left over.
struct Shared {
  std::array<Sum, 2> sums, partner_sums;
  std::size_t left = 0, partner_left = 0;
  bool unclear = false;  // some of those left have several partners
};

Shared share(const Places& places, const Places& partner_places, std::span<const Key> keys) {
  Shared out;
  std::set<std::size_t> used;
  for (const auto& [place, sums] : places) {
    BestFit<Places::value_type> best;
    if (const auto same = partner_places.find(place); same != partner_places.end()) {
      best.offer(KeyMatch::kExact, *same);
    } else {
      for (const auto& other : partner_places) best.offer(match(keys[place], keys[other.first]), other);
    }
    const Places::value_type* partner = best.found();
    out.unclear = out.unclear || best.several();
    if (!partner) {
      ++out.left;
      continue;
    }
    used.insert(partner->first);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      out.sums[i].add(sums[i]);
      out.partner_sums[i].add(partner->second[i]);
    }
  }
  out.partner_left = partner_places.size() - used.size();
  return out;
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

Difference estimate_difference(const Pile& pile, const Pile& other, std::span<const Key> keys, const Measure& measure,
                               bool relative, bool intervals) {
  Values values, partner_values;
  Clusters clusters;
  Difference out;
  int all_unclear = 0;  // samples
  for (const auto& [sample, place] : pile.index) {
    const auto partner = other.index.find(sample);
    if (partner == other.index.end()) continue;
    const Shared shared = share(pile.samples[place], other.samples[partner->second], keys);
    const auto a = number_of(shared.sums, measure);
    const auto b = number_of(shared.partner_sums, measure);
    if (!a || !b) {
      if (shared.unclear) ++all_unclear;
      continue;
    }
    values.push_back(*a);
    partner_values.push_back(*b);
    clusters.add(pile.documents[place]);
    if (shared.unclear) {
      ++out.unpaired.unclear;
    } else if (shared.left + shared.partner_left > 0) {
      ++out.unpaired.partly;
    }
  }
  out.unpaired.unclear += all_unclear;
  out.unpaired.samples = static_cast<int>(pile.samples.size() - values.size()) - all_unclear;
  out.unpaired.partner_samples = static_cast<int>(other.samples.size() - values.size()) - all_unclear;
  out.estimate = resampled(clusters, intervals, [&](std::span<const int> picks) {
    const double reference = statistic(partner_values, picks, measure);
    const double less = statistic(values, picks, measure) - reference;
    return relative ? 100 * less / std::abs(reference) : less;
  });
  if (out.estimate && !std::isfinite(out.estimate->value)) out.estimate.reset();  // in % of nothing
  return out;
}

}  // namespace kv
