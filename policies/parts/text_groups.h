#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "sim/cache/block.h"
#include "sim/learned/learner.h"
#include "sim/model/forward.h"

namespace kv {

// Some of a step's texts, whole and one behind the other, as they go through a model at once.
struct TextGroup {
  Block block;
  std::vector<int32_t> ids;  // [tokens]
  Tensor device_ids;         // the same, on the backend
  double share = 0;          // of the step's tokens

  const int32_t* on_device() const { return device_ids.ref().as<int32_t>(); }
};

// The option of `learn` that says how many; 16384 where it says nothing.
int64_t read_tokens_at_once(Params& params);

// Option `deterministic`: whether a GPU's sums over gradients have one order.
bool read_deterministic(Params& params);

// Option `lambda`: what a loss beside that of the model's words or states weighs.
double read_lambda(Params& params, double fallback);

// That the step's texts go through.
const ForwardModel& model_of(const LearnBatch& batch);

// Of the texts that are here.
int64_t tokens_of(const LearnBatch& batch);
// Of all texts of the step.
int64_t step_tokens_of(const LearnBatch& batch);
// What the texts that are here have of the step's tokens.
double share_of(const LearnBatch& batch);

// Whether all of the step's texts go through the model together, here.
bool is_one_group(const LearnBatch& batch, int64_t tokens_at_once);

// Calls with the step's texts in their order, as many at once as have at most `tokens_at_once` tokens, but never none:
// gradients of a step are sums over groups, of all its parts, whose memory is one group's. Where the first is there
// already (first_group), it is not made anew. UserError for an id outside the vocabulary.
void for_each_group(const LearnBatch& batch, int64_t tokens_at_once, const std::function<void(const TextGroup&)>& visit,
                    std::optional<TextGroup> first = std::nullopt);

// The first of those groups. Its share is not known yet.
TextGroup first_group(const LearnBatch& batch, int64_t tokens_at_once);

}  // namespace kv
