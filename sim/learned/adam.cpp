#include "sim/learned/adam.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv {

namespace {

constexpr int64_t kBlock = 1 << 14;  // weights of a task; sums of it depend on this

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
  std::vector<double> squares((gradient.size() + kBlock - 1) / kBlock);
  cpu::parallel_blocks(std::ssize(gradient), kBlock, [&](int64_t first, int64_t end) {
    const double* slopes = gradient.data() + first;
    squares[static_cast<size_t>(first / kBlock)] =
        cpu::sum_of<double>(end - first, [=](int64_t i) { return slopes[i] * slopes[i]; });
  });
  return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
}

void clip_norm(std::span<double> gradient, double norm, double bound) {
  const double factor = std::min(1.0, bound / (norm + 1e-6));
  if (factor == 1) return;
  cpu::parallel_blocks(std::ssize(gradient), kBlock, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) gradient[static_cast<size_t>(i)] *= factor;
  });
}

}  // namespace kv
