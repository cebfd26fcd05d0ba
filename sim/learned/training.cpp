#include "sim/learned/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/error.h"
#include "kernels/random_uniform.h"
#include "sim/learned/learning_rate.h"

namespace kv {

namespace {

constexpr int64_t kBlock = 1 << 16;         // slopes of a task
constexpr uint32_t kShuffles = 0x5EED0001;  // the stream of hash_uniform that orders texts

// Fisher and Yates' shuffle of one round.
std::vector<int> round_order(int64_t round, int texts, uint64_t seed) {
  std::vector<int> order(static_cast<size_t>(texts));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) {
    const float u = hash_uniform(seed, kShuffles, static_cast<uint32_t>(round), static_cast<uint32_t>(i));
    std::swap(order[i - 1], order[std::min(i - 1, static_cast<size_t>(u * static_cast<float>(i)))]);
  }
  return order;
}

// Means by their weights.
void add_up(StepParts& parts, std::vector<LearnedMean>& means) {
  std::vector<double> sums;
  for (const LearnedMean& mean : means) sums.push_back(mean.value * mean.weight);
  for (const LearnedMean& mean : means) sums.push_back(mean.weight);
  parts.add_up(sums);
  for (size_t i = 0; i < means.size(); ++i) {
    const double value = sums[i], weight = sums[means.size() + i];
    means[i].value = weight > 0 ? value / weight : 0;
    means[i].weight = weight;
  }
}

}  // namespace

std::vector<int> texts_of_step(int64_t step, int64_t batch, int texts, uint64_t seed) {
  KV_CHECK(texts > 0);
  std::vector<int> chosen, order;
  int64_t ordered = -1;
  for (int64_t i = step * batch; i < (step + 1) * batch; ++i) {
    if (const int64_t round = i / texts; round != ordered) {
      order = round_order(round, texts, seed);
      ordered = round;
    }
    chosen.push_back(order[static_cast<size_t>(i % texts)]);
  }
  return chosen;
}

Training::Training(const TrainingOptions& options, Learner& learner, NamedParts named, std::vector<float> initial)
    : options_(options),
      learner_(learner),
      named_(std::move(named)),
      parameters_(std::move(initial)),
      adam_(parameters_.size(), {.decay = options.decay}),
      gradient_(parameters_.size()) {}

void Training::restore(State state) {
  if (state.parameters.size() != parameters_.size() || state.adam.mean.size() != parameters_.size() ||
      state.adam.square.size() != parameters_.size()) {
    throw UserError(
        fmt::format("the checkpoint holds {} parameters, expected {}", state.parameters.size(), parameters_.size()));
  }
  step_ = state.step;
  parameters_ = std::move(state.parameters);
  adam_.restore(std::move(state.adam));
}

double Training::rate() const {
  const double factor = options_.schedule == TrainingOptions::Schedule::kCosine
                            ? cosine_after_warm_up(step_, options_.warm_up, options_.steps)
                            : constant_after_warm_up(step_, options_.warm_up);
  return options_.rate * factor;
}

// A norm that is none of a slope's, but too large itself, is let through.
void Training::require_finite_gradient() const {
  const auto bad = std::find_if(gradient_.begin(), gradient_.end(), [](double slope) { return !std::isfinite(slope); });
  if (bad == gradient_.end()) return;
  throw NotFiniteError(fmt::format("{}: the gradient is {}", named_.place_of(bad - gradient_.begin()), *bad));
}

std::vector<Measured> Training::step(const LearnBatch& batch, const NextBatch& next) {
  try {
    return take_step(batch, next);
  } catch (const NotFiniteError& error) {
    throw NotFiniteError(fmt::format("step {}: {}", step_, error.what()));
  }
}

std::vector<Measured> Training::take_step(const LearnBatch& batch, const NextBatch& next) {
  cpu::parallel_blocks(std::ssize(gradient_), kBlock, [&](int64_t first, int64_t end) {
    std::fill(gradient_.begin() + first, gradient_.begin() + end, 0.0);
  });
  LearnBatch asking = batch;
  bool has_asked = false;
  asking.when_asked = [&] {
    KV_CHECK(!has_asked);
    has_asked = true;
    if (const std::optional<LearnBatch> coming = next()) learner_.begin_next(*coming);
  };
  std::vector<LearnedMean> means = learner_.learn(asking, parameters_, gradient_);
  if (batch.part) {
    batch.part->all.add_up(gradient_);
    add_up(batch.part->all, means);
  }
  std::vector<Measured> measured;
  for (LearnedMean& mean : means) {
    measured.push_back({.metric = std::move(mean.metric), .value = mean.value, .unit = std::move(mean.unit)});
  }
  const double norm = norm_of(gradient_);
  if (!std::isfinite(norm)) require_finite_gradient();
  if (options_.clip > 0) clip_norm(gradient_, norm, options_.clip);
  adam_.step(parameters_, gradient_, rate());
  measured.push_back({.metric = "learning_rate", .value = rate()});
  measured.push_back({.metric = "gradient_norm", .value = norm});
  ++step_;
  return measured;
}

}  // namespace kv
