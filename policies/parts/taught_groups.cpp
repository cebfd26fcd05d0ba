#include "policies/parts/taught_groups.h"

#include <algorithm>
#include <utility>

#include "sim/learned/student.h"

namespace kv {

void TaughtGroups::begin_next(const LearnBatch& next, int64_t tokens_at_once) {
  TextGroup group = first_group(next, tokens_at_once);
  teach(next, group);
  begun_ = {&model_of(next), next.step, {next.sample_numbers.begin(), next.sample_numbers.end()}, std::move(group)};
}

void TaughtGroups::for_each(const LearnBatch& batch, int64_t tokens_at_once,
                            const std::function<void(const TextGroup&, Ref states)>& visit) {
  std::optional<TextGroup> first = begun(batch);
  bool is_taught = first.has_value();
  const auto taught = [&](const TextGroup& group) {
    if (!std::exchange(is_taught, false)) teach(batch, group);
    visit(group, states_.ref());
  };
  for_each_group(batch, tokens_at_once, taught, std::move(first));
}

void TaughtGroups::teach(const LearnBatch& batch, const TextGroup& group) {
  const ForwardModel& model = model_of(batch);
  states_.reserve(batch.backend, batch.backend.activation_type(), group.block.tokens * model.config.hidden_size);
  Student(model, batch.memory).teach(group.block, group.on_device(), states_.ref());
}

std::optional<TextGroup> TaughtGroups::begun(const LearnBatch& batch) {
  std::optional<Begun> begun = std::exchange(begun_, std::nullopt);
  if (!begun || begun->model != &model_of(batch) || begun->step != batch.step) return std::nullopt;
  if (!std::ranges::equal(begun->sample_numbers, batch.sample_numbers)) return std::nullopt;
  return std::move(begun->group);
}

}  // namespace kv
