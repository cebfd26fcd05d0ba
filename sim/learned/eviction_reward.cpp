#include "sim/learned/eviction_reward.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/check.h"

namespace kv {

namespace {

std::vector<size_t> by_entropy(std::span<const float> entropy) {
  std::vector<size_t> order(entropy.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return entropy[a] < entropy[b]; });
  return order;
}

// What a token costs; the reward is minus the mean over those that count.
double cost(double full, double evicted, const RewardOptions& options) {
  const double increase = evicted - full;
  const bool is_large = increase > options.threshold;
  switch (options.kind) {
    case RewardKind::kOurs:
      return is_large ? increase * increase : 0.0;
    case RewardKind::kNone:
      return 0;
    case RewardKind::kLowLarge:
      return is_large ? evicted : 0.0;
    case RewardKind::kAll:
    case RewardKind::kLow:
    case RewardKind::kHigh:
      return evicted;
  }
  KV_CHECK(false);
}

}  // namespace

double eviction_reward(std::span<const float> full_loss, std::span<const float> evicted_loss,
                       std::span<const float> entropy, const RewardOptions& options) {
  KV_CHECK(full_loss.size() == evicted_loss.size() && full_loss.size() == entropy.size());
  const std::vector<size_t> order = by_entropy(entropy);
  const auto low = order.size() - static_cast<size_t>(options.high_share * static_cast<double>(order.size()));
  std::span<const size_t> counted(order);
  if (options.kind == RewardKind::kHigh) counted = counted.subspan(low);
  if (options.kind != RewardKind::kHigh && options.kind != RewardKind::kAll) counted = counted.first(low);
  if (counted.empty()) return 0;
  double sum = 0;
  for (const size_t t : counted) sum += cost(full_loss[t], evicted_loss[t], options);
  return -sum / static_cast<double>(counted.size());
}

std::vector<double> group_advantages(std::span<const double> rewards) {
  const auto count = static_cast<double>(rewards.size());
  const double mean = std::accumulate(rewards.begin(), rewards.end(), 0.0) / count;
  double square = 0;
  for (const double reward : rewards) square += (reward - mean) * (reward - mean);
  const double deviation = std::sqrt(square / count);
  std::vector<double> advantages;
  for (const double reward : rewards) advantages.push_back((reward - mean) / (deviation + 1e-8));
  return advantages;
}

}  // namespace kv
