#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace kv {

struct Interval {
  double low = 0;
  double high = 0;
};

struct Estimate {
  double value = 0;
  std::optional<Interval> interval{};  // absent for a single cluster: it says nothing about spread
  int samples = 0;
  int clusters = 0;  // of which samples were drawn together; as many as samples where each is its own
};

// Of fewer samples (or clusters, where those are drawn) nothing prints an interval: the percentile bootstrap's would be
// the range of their values and little more. All draws of three samples are the same one in one case of nine.
inline constexpr int kFewestForAnInterval = 5;

struct BootstrapOptions {
  int resamples = 2000;
  double confidence = 0.95;
  std::uint64_t seed = 0;  // the same seed draws the same samples, so estimates of one call are paired
  // What each sample belongs to, numbered from 0 in order of appearance; empty: every sample is its own. Clusters are
  // drawn, with all their samples (Davison and Hinkley 1997, section 3.8): samples of one are not independent.
  std::span<const int> clusters{};
};

// The q-quantile, 0 <= q <= 1, of at least one value, linear between order statistics (type 7 of Hyndman and Fan 1996).
double quantile(std::span<const double> values, double q);

// Percentile bootstrap (Efron 1979): `statistic` gets indices into the samples, first 0..samples-1 for the value
// itself, then draws with replacement. Draws that are not finite (a resampled denominator of zero) drop out of the
// interval. With clusters a draw has as many clusters as there are, and so a number of samples that varies.
// Counter-based generator: bit-stable across machines and thread counts. Needs samples >= 1.
Estimate bootstrap(int samples, const std::function<double(std::span<const int>)>& statistic,
                   const BootstrapOptions& options = {});

Estimate bootstrap_mean(std::span<const double> values, const BootstrapOptions& options = {});
// Mean of b - a over pairs; clusters as in bootstrap().
Estimate bootstrap_difference(std::span<const double> a, std::span<const double> b,
                              const BootstrapOptions& options = {});

// Kendall's tau-b (Kendall 1945), which corrects for ties: 1 the same ordering, -1 the reverse. Absent where a side has
// no two different values.
std::optional<double> kendall_tau_b(std::span<const double> a, std::span<const double> b);

}  // namespace kv
