#include "sim/model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/check.h"

namespace kv {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

// Every step of f32 below rounds where transformers' does; this file is compiled without contraction into
// multiply-adds. Torch divides a number by a tensor as the tensor's inverse times the number.
float inverse(float x) { return 1.0f / x; }

// theta^(2i/d), tokens a radian.
std::vector<float> wavelengths(double theta, int head_dim) {
  const double base = static_cast<float>(theta);
  std::vector<float> lengths;
  for (int i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    lengths.push_back(static_cast<float>(std::pow(base, exponent)));
  }
  return lengths;
}

std::vector<float> plain_frequencies(double theta, int head_dim) {
  std::vector<float> inv_freq = wavelengths(theta, head_dim);
  for (float& f : inv_freq) f = inverse(f);
  return inv_freq;
}

float llama3_frequency(float inv_freq, const RopeConfig& config) {
  const auto factor = static_cast<float>(config.factor);
  const float wavelength = inverse(inv_freq) * static_cast<float>(kTwoPi);
  if (wavelength > static_cast<float>(config.original_max_positions / config.low_freq_factor)) return inv_freq / factor;
  if (wavelength < static_cast<float>(config.original_max_positions / config.high_freq_factor)) return inv_freq;
  const float turns = inverse(wavelength) * static_cast<float>(config.original_max_positions);
  const float kept = (turns - static_cast<float>(config.low_freq_factor)) /
                     static_cast<float>(config.high_freq_factor - config.low_freq_factor);
  return (1.0f - kept) * inv_freq / factor + kept * inv_freq;
}

// The (fractional) pair whose frequency makes `turns` rotations over the original context.
double yarn_pair(double turns, const RopeConfig& config, int head_dim) {
  return head_dim * std::log(config.original_max_positions / (turns * kTwoPi)) / (2.0 * std::log(config.theta));
}

std::vector<float> yarn_frequencies(const RopeConfig& config, int head_dim) {
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
  const std::vector<float> lengths = wavelengths(config.theta, head_dim);
  std::vector<float> inv_freq;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    const float stretched = inverse(static_cast<float>(config.factor) * lengths[i]);
    inv_freq.push_back(stretched * (1.0f - kept) + inverse(lengths[i]) * kept);
  }
  return inv_freq;
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
  const bool yarn = config.type == RopeType::kYarn;
  Rope rope{.inv_freq = yarn ? yarn_frequencies(config, head_dim) : plain_frequencies(config.theta, head_dim),
            .attention_factor = yarn ? yarn_attention_factor(config) : 1.0};
  for (float& f : rope.inv_freq) {
    if (config.type == RopeType::kLinear) f /= static_cast<float>(config.factor);
    if (config.type == RopeType::kLlama3) f = llama3_frequency(f, config);
  }
  KV_CHECK(config.divisors.empty() || config.divisors.size() == rope.inv_freq.size());
  for (size_t i = 0; i < config.divisors.size(); ++i) rope.inv_freq[i] /= config.divisors[i];
  return rope;
}

}  // namespace kv
