#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/learned/adam.h"
#include "sim/learned/learner.h"
#include "sim/learned/named_parts.h"
#include "sim/learned/training_options.h"
#include "sim/policy/measured.h"

namespace kv {

// Which of `texts` texts each step sees: all of them in an order drawn anew each time round, a pure function of seed
// and step. A step may see the end of one round and the beginning of the next.
std::vector<int> texts_of_step(int64_t step, int64_t batch, int texts, uint64_t seed);

// Adam on what a learner's steps say, the gradient clipped; learner and options must stay alive.
class Training {
 public:
  // `named` are the learner's parts, for complaints.
  Training(const TrainingOptions& options, Learner& learner, NamedParts named, std::vector<float> initial);

  // All that a training is besides its options and texts.
  struct State {
    int64_t step = 0;  // steps done
    std::vector<float> parameters;
    Adam::State adam;
  };
  State state() const { return {step_, parameters_, adam_.state()}; }
  // UserError where it is of another number of parameters.
  void restore(State state);

  int64_t steps_done() const { return step_; }
  bool is_done() const { return step_ >= options_.steps; }
  std::span<const float> parameters() const { return parameters_; }
  // One step, of all its parts together where the batch is one of several: each comes to the same parameters. What the
  // learner measured, then learning_rate and gradient_norm, before clipping. NotFiniteError, naming
  // the step, as Learner::learn, and where the gradient is not finite, naming whose: then nothing has changed.
  // `next` is asked for the next step's texts, where there is one, once a learner that can begin them has asked for all
  // that it needs of these, so that it begins them while the host ends this step. What it throws comes before this step
  // is taken.
  using NextBatch = std::function<std::optional<LearnBatch>()>;
  std::vector<Measured> step(
      const LearnBatch& batch, const NextBatch& next = [] { return std::nullopt; });

 private:
  double rate() const;
  std::vector<Measured> take_step(const LearnBatch& batch, const NextBatch& next);
  void require_finite_gradient() const;

  const TrainingOptions& options_;
  Learner& learner_;
  NamedParts named_;
  int64_t step_ = 0;
  std::vector<float> parameters_;
  Adam adam_;
  std::vector<double> gradient_;
};

}  // namespace kv
