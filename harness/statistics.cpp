#include "harness/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/check.h"

namespace kv {
namespace {

// Finaliser of SplitMix64 (Steele, Lea, Flood 2014) over a counter: draw i needs no draw before it.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Multiply-shift of the upper 32 bits: the bias is below n / 2^32.
int random_index(std::uint64_t seed, std::uint64_t counter, int n) {
  return static_cast<int>(((random_bits(seed, counter) >> 32) * static_cast<std::uint64_t>(n)) >> 32);
}

// The samples of each cluster.
std::vector<std::vector<int>> members_of(std::span<const int> clusters) {
  std::vector<std::vector<int>> members;
  for (std::size_t sample = 0; sample < clusters.size(); ++sample) {
    const auto cluster = static_cast<std::size_t>(clusters[sample]);
    KV_CHECK(cluster <= members.size());
    if (cluster == members.size()) members.emplace_back();
    members[cluster].push_back(static_cast<int>(sample));
  }
  return members;
}

}  // namespace

double quantile(std::span<const double> values, double q) {
  KV_CHECK(!values.empty() && q >= 0 && q <= 1);
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double rank = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Estimate bootstrap(int samples, const std::function<double(std::span<const int>)>& statistic,
                   const BootstrapOptions& options) {
  KV_CHECK(samples >= 1 && options.resamples >= 1);
  std::vector<int> picks(static_cast<std::size_t>(samples));
  std::iota(picks.begin(), picks.end(), 0);
  const std::vector<std::vector<int>> members = members_of(options.clusters.empty() ? picks : options.clusters);
  const int clusters = static_cast<int>(members.size());
  Estimate estimate{.value = statistic(picks), .samples = samples, .clusters = clusters};
  if (clusters == 1) return estimate;
  std::vector<double> draws;
  draws.reserve(static_cast<std::size_t>(options.resamples));
  std::uint64_t counter = 0;
  for (int resample = 0; resample < options.resamples; ++resample) {
    picks.clear();
    for (int i = 0; i < clusters; ++i) {
      const auto& drawn = members[static_cast<std::size_t>(random_index(options.seed, counter++, clusters))];
      picks.insert(picks.end(), drawn.begin(), drawn.end());
    }
    const double draw = statistic(picks);
    if (std::isfinite(draw)) draws.push_back(draw);
  }
  if (draws.empty()) return estimate;
  const double tail = (1 - options.confidence) / 2;
  estimate.interval = {.low = quantile(draws, tail), .high = quantile(draws, 1 - tail)};
  return estimate;
}

Estimate bootstrap_mean(std::span<const double> values, const BootstrapOptions& options) {
  return bootstrap(
      static_cast<int>(values.size()),
      [&](std::span<const int> picks) {
        double sum = 0;
        for (const int pick : picks) sum += values[static_cast<std::size_t>(pick)];
        return sum / static_cast<double>(picks.size());
      },
      options);
}

Estimate bootstrap_difference(std::span<const double> a, std::span<const double> b, const BootstrapOptions& options) {
  KV_CHECK(a.size() == b.size());
  std::vector<double> differences(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) differences[i] = b[i] - a[i];
  return bootstrap_mean(differences, options);
}

std::optional<double> kendall_tau_b(std::span<const double> a, std::span<const double> b) {
  KV_CHECK(a.size() == b.size());
  double balance = 0;  // concordant pairs less discordant ones
  double untied_a = 0;
  double untied_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const int order_a = (a[i] > a[j]) - (a[i] < a[j]);
      const int order_b = (b[i] > b[j]) - (b[i] < b[j]);
      balance += order_a * order_b;
      untied_a += order_a != 0;
      untied_b += order_b != 0;
    }
  }
  if (untied_a == 0 || untied_b == 0) return std::nullopt;
  return balance / std::sqrt(untied_a * untied_b);
}

}  // namespace kv
