#include "sim/learned/adam.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/check.h"

namespace kv {

void Adam::step(std::span<float> weights, std::span<const double> gradient, double rate) {
  KV_CHECK(weights.size() == mean_.size() && gradient.size() == mean_.size());
  ++steps_;
  const auto t = static_cast<double>(steps_);
  const double mean_share = 1 - std::pow(options_.beta1, t), square_share = 1 - std::pow(options_.beta2, t);
  for (size_t i = 0; i < weights.size(); ++i) {
    const double g = gradient[i];
    mean_[i] = static_cast<float>(options_.beta1 * mean_[i] + (1 - options_.beta1) * g);
    square_[i] = static_cast<float>(options_.beta2 * square_[i] + (1 - options_.beta2) * g * g);
    const double direction = mean_[i] / mean_share / (std::sqrt(square_[i] / square_share) + options_.epsilon);
    weights[i] = static_cast<float>(weights[i] - rate * (options_.decay * weights[i] + direction));
  }
}

void Adam::restore(State state) {
  KV_CHECK(state.mean.size() == mean_.size() && state.square.size() == square_.size());
  steps_ = state.steps;
  mean_ = std::move(state.mean);
  square_ = std::move(state.square);
}

double clip_norm(std::span<double> gradient, double bound) {
  double square = 0;
  for (const double g : gradient) square += g * g;
  const double norm = std::sqrt(square), factor = std::min(1.0, bound / (norm + 1e-6));
  for (double& g : gradient) g *= factor;
  return norm;
}

}  // namespace kv
