#include "harness/protocols/answer_importance.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kernels/error.h"
#include "kernels/projected_norms.h"
#include "sim/cache/to_host.h"

namespace kv {

namespace {

// The largest attention to each context entry. Nothing was evicted: a slot is a position.
class LargestAttention final : public Observer {
 public:
  LargestAttention(const SourceInfo& info, size_t context)
      : info_(info),
        largest_(static_cast<size_t>(info.layers) * static_cast<size_t>(info.q_heads),
                 std::vector<float>(context, 0.0F)) {}

  void begin_answer() { is_answer_ = true; }
  ObserverNeeds observer_needs() const override { return {.column_max = true, .baseline = {}}; }

  void attended(const LayerView& view, ConstRef) override {
    if (!is_answer_) return;
    for (int head = 0; head < info_.q_heads; ++head) {
      auto& largest = largest_[static_cast<size_t>(view.layer * info_.q_heads + head)];
      largest = to_host(view.backend, view.column_max.row(head), std::ssize(largest));
    }
  }

  const std::vector<float>& of(int layer, int q_head) const {
    return largest_[static_cast<size_t>(layer * info_.q_heads + q_head)];
  }

 private:
  const SourceInfo& info_;
  bool is_answer_ = false;
  std::vector<std::vector<float>> largest_;  // [layers · q_heads][context]
};

std::vector<std::vector<float>> combine(const SourceInfo& info, const ContextNorms& norms,
                                        const LargestAttention& attention, const ImportanceOptions& options,
                                        size_t context) {
  std::vector<std::vector<float>> all;
  for (int layer = 0; layer < info.layers; ++layer) {
    for (int head = 0; head < info.q_heads; ++head) {
      if (head % info.group() == 0) all.emplace_back(context, 0.0F);
      add_query_head(options.group, info.group(), attention.of(layer, head), norms.layer(layer).data() + head,
                     static_cast<size_t>(info.q_heads), all.back());
    }
    const auto heads = std::span(all).last(static_cast<size_t>(info.kv_heads));
    double total = 0;
    for (const auto& head : heads) total = std::accumulate(head.begin(), head.end(), total);
    if (total <= 0) continue;
    for (auto& head : heads) {
      for (float& value : head) value = static_cast<float>(value / options.divisor(total));
    }
  }
  return all;
}

}  // namespace

ContextNorms::ContextNorms(const ModelSource& source)
    : source_(source), layers_(static_cast<size_t>(source.info().layers)) {}

void ContextNorms::attended(const LayerView& view, ConstRef) {
  const SourceInfo& info = source_.info();
  const int64_t tokens = view.segments.front().count;
  scratch_.reserve(view.backend, DType::kF32, tokens * info.q_heads);
  view.backend.projected_norms({.values = view.projections.values,
                                .output_weight = source_.output_weight(view.layer),
                                .norms = scratch_.ref().as<float>(),
                                .tokens = tokens,
                                .q_heads = info.q_heads,
                                .kv_heads = info.kv_heads,
                                .head_dim = info.head_dim,
                                .width = info.width});
  const auto norms = to_host(view.backend, scratch_.ref().as<float>(), tokens * info.q_heads);
  auto& layer_norms = layers_[static_cast<size_t>(view.layer)];
  layer_norms.insert(layer_norms.end(), norms.begin(), norms.end());
}

std::vector<std::vector<float>> answer_importance(Backend& backend, ModelSource& source, const Exam& exam,
                                                  const ExamQuestion& question, const ContextNorms& norms,
                                                  const ImportanceOptions& options, LoopState state) {
  if (question.expected.empty()) {
    throw UserError(fmt::format("{}: a question without an answer to go on with", exam.name));
  }
  std::vector<int32_t> ids = exam.context;
  ids.insert(ids.end(), question.ids.begin(), question.ids.end());
  ids.insert(ids.end(), question.prefix.begin(), question.prefix.end());
  ids.insert(ids.end(), question.expected.begin(), question.expected.end() - 1);
  const std::span<const int32_t> sequences[] = {ids};
  Policy full = make_policy("full", {});
  LargestAttention attention(source.info(), exam.context.size());
  Observer* const observers[] = {&attention};
  Loop loop({.backend = backend,
             .source = source,
             .policy = full,
             .sequences = 1,
             .observers = observers,
             .time_phases = false});
  loop.resume(sequences, std::move(state));
  const auto step = [&](int64_t count) {
    if (count > 0) loop.step({.counts = {static_cast<int32_t>(count)}, .keep = {-1}});
  };
  step(std::ssize(question.ids));
  attention.begin_answer();
  step(std::ssize(question.prefix) + std::ssize(question.expected) - 1);
  loop.finish();
  return combine(source.info(), norms, attention, options, exam.context.size());
}

}  // namespace kv
