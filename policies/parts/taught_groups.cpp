#include "policies/parts/taught_groups.h"

#include <utility>

#include "kernels/check.h"
#include "sim/learned/student.h"
#include "sim/source/source.h"

namespace kv {

namespace {

const ForwardModel& model_of(const LearnBatch& batch) {
  const ForwardModel* const model = batch.source.frozen_model();
  KV_CHECK(model);  // protocol train runs a model
  return *model;
}

}  // namespace

void TaughtGroups::begin(const LearnBatch& next, int64_t tokens_at_once) {
  const ForwardModel& model = model_of(next);
  begun_ = {&model, next.step, first_group(next, model.config.vocab_size, tokens_at_once)};
  teach(next, model, begun_->group);
}

void TaughtGroups::for_each(const LearnBatch& batch, int64_t tokens_at_once,
                            const std::function<void(const TextGroup&, Ref states)>& visit) {
  const ForwardModel& model = model_of(batch);
  std::optional<TextGroup> first = begun(batch);
  bool is_taught = first.has_value();
  const auto taught = [&](const TextGroup& group) {
    if (!std::exchange(is_taught, false)) teach(batch, model, group);
    visit(group, states_.ref());
  };
  for_each_group(batch, model.config.vocab_size, tokens_at_once, taught, std::move(first));
}

void TaughtGroups::teach(const LearnBatch& batch, const ForwardModel& model, const TextGroup& group) {
  states_.reserve(batch.backend, batch.backend.activation_type(), group.block.tokens * model.config.hidden_size);
  Student(model, batch.memory).teach(group.block, group.on_device(), states_.ref());
}

std::optional<TextGroup> TaughtGroups::begun(const LearnBatch& batch) {
  std::optional<Begun> begun = std::exchange(begun_, std::nullopt);
  if (!begun || begun->step != batch.step || begun->model != batch.source.frozen_model()) return std::nullopt;
  return std::move(begun->group);
}

}  // namespace kv
