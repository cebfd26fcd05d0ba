#include "sim/learned/adam.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

namespace kv {

namespace {

constexpr int64_t kBlock = 1 << 14;  // weights of a task

}  // namespace

void Adam::step(std::span<float> weights, std::span<const double> gradient, double rate) {
  KV_CHECK(weights.size() == mean_.size() && gradient.size() == mean_.size());
  ++steps_;
  const auto t = static_cast<double>(steps_);
  const AdamOptions by = options_;
  const double mean_share = 1 - std::pow(by.beta1, t), square_share = 1 - std::pow(by.beta2, t);
  float *weight = weights.data(), *mean = mean_.data(), *square = square_.data();
  const double* slope = gradient.data();
  cpu::parallel_blocks(std::ssize(weights), kBlock, [=](int64_t first, int64_t end) {
#pragma omp simd
    for (int64_t i = first; i < end; ++i) {
      const double g = slope[i];
      mean[i] = static_cast<float>(by.beta1 * mean[i] + (1 - by.beta1) * g);
      square[i] = static_cast<float>(by.beta2 * square[i] + (1 - by.beta2) * g * g);
      const double direction = mean[i] / mean_share / (std::sqrt(square[i] / square_share) + by.epsilon);
      weight[i] = static_cast<float>(weight[i] - rate * (by.decay * weight[i] + direction));
    }
  });
}

void Adam::restore(State state) {
  KV_CHECK(state.mean.size() == mean_.size() && state.square.size() == square_.size());
  steps_ = state.steps;
  mean_ = std::move(state.mean);
  square_ = std::move(state.square);
}

double norm_of(std::span<const double> gradient) {
  double square = 0;
  for (const double g : gradient) square += g * g;
  return std::sqrt(square);
}

void clip_norm(std::span<double> gradient, double norm, double bound) {
  const double factor = std::min(1.0, bound / (norm + 1e-6));
  if (factor == 1) return;
  for (double& g : gradient) g *= factor;
}

}  // namespace kv
