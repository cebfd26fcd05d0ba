#include "sim/model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/check.h"

namespace kv {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

std::vector<double> plain_frequencies(double theta, int head_dim) {
  std::vector<double> inv_freq(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i) inv_freq[i] = std::pow(theta, -2.0 * i / head_dim);
  return inv_freq;
}

double llama3_frequency(double inv_freq, const RopeConfig& config) {
  const double turns = config.original_max_positions * inv_freq / kTwoPi;  // over the original context
  if (turns < config.low_freq_factor) return inv_freq / config.factor;
  if (turns > config.high_freq_factor) return inv_freq;
  const double kept = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  return (1.0 - kept) * inv_freq / config.factor + kept * inv_freq;
}

// The (fractional) pair whose frequency makes `turns` rotations over the original context.
double yarn_pair(double turns, const RopeConfig& config, int head_dim) {
  return head_dim * std::log(config.original_max_positions / (turns * kTwoPi)) / (2.0 * std::log(config.theta));
}

void scale_yarn(std::vector<double>& inv_freq, const RopeConfig& config, int head_dim) {
  double low = yarn_pair(config.beta_fast, config, head_dim);
  double high = yarn_pair(config.beta_slow, config, head_dim);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  // head_dim - 1, not head_dim / 2 - 1: the bound that the reference implementation uses.
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  for (int i = 0; i < head_dim / 2; ++i) {
    const double interpolated = std::clamp((i - low) / (high - low), 0.0, 1.0);
    inv_freq[i] = interpolated * inv_freq[i] / config.factor + (1.0 - interpolated) * inv_freq[i];
  }
}

double yarn_mscale(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

double yarn_attention_factor(const RopeConfig& config) {
  if (config.attention_factor) return *config.attention_factor;
  const double mscale = config.mscale.value_or(0.0);
  const double all_dim = config.mscale_all_dim.value_or(0.0);
  if (mscale == 0.0 || all_dim == 0.0) return yarn_mscale(config.factor, 1.0);
  return yarn_mscale(config.factor, mscale) / yarn_mscale(config.factor, all_dim);
}

}  // namespace

std::string_view rope_type_name(RopeType type) {
  switch (type) {
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
  }
  return "";
}

Rope make_rope(const RopeConfig& config, int head_dim) {
  KV_CHECK(head_dim > 0 && head_dim % 2 == 0);
  Rope rope{.inv_freq = plain_frequencies(config.theta, head_dim)};
  KV_CHECK(config.divisors.empty() || config.divisors.size() == rope.inv_freq.size());
  for (size_t i = 0; i < config.divisors.size(); ++i) rope.inv_freq[i] /= config.divisors[i];
  switch (config.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      for (double& f : rope.inv_freq) f /= config.factor;
      break;
    case RopeType::kLlama3:
      for (double& f : rope.inv_freq) f = llama3_frequency(f, config);
      break;
    case RopeType::kYarn:
      scale_yarn(rope.inv_freq, config, head_dim);
      rope.attention_factor = yarn_attention_factor(config);
      break;
  }
  return rope;
}

}  // namespace kv
