#include "policies/parts/eviction_draw.h"

#include <algorithm>

#include "kernels/draw_order.h"
#include "kernels/select_top.h"

namespace kv {

EvictionSampling read_eviction_sampling(Params& params) {
  const std::string name = params.get(
      "sampling", "top2l", {"top2l", "multinomial", "top"},
      "which entries leave: as many as must, drawn from twice as many of the worst; drawn from all; the worst");
  if (name == "top") return EvictionSampling::kTop;
  return name == "top2l" ? EvictionSampling::kTop2d : EvictionSampling::kMultinomial;
}

void EvictionDraw::begin(const BatchShape& shape, bool every_layer) {
  const auto layers = static_cast<size_t>(every_layer ? shape.source->layers : 1);
  keep_.resize(layers);
  stays_.assign(layers, {});
  budget_ = shape.budget;
  interval_ = shape.interval;
  seed_ = shape.seed;
  layer_numbers_ = shape.source->layer_numbers;
  counts_uploaded_.clear();
  numbers_ = Tensor(*shape.backend, DType::kI32, std::ssize(shape.sample_numbers));
  numbers_.upload(shape.sample_numbers.data(), shape.sample_numbers.size_bytes());
}

// Scores that have no order give any candidates: a cut looks at all of them before it selects, and draws pass them on.
void EvictionDraw::choose_candidates(const LayerView& view, const ScoreOutput& out) {
  std::vector<int32_t> counts;
  for (const int32_t length : view.lengths) {
    const int32_t drop = std::max(0, length - budget_);
    counts.push_back(std::max(interval_, length - 2 * drop));
  }
  if (counts_uploaded_.empty() || counts != counts_uploaded_) {  // layers have the same, nearly always
    counts_uploaded_.clear();
    counts_.reserve(view.backend, DType::kI32, std::ssize(counts));
    counts_.upload(counts.data(), counts.size() * sizeof(int32_t));
    counts_uploaded_ = std::move(counts);
  }
  const Slots<uint8_t> keep = keep_[index(view.layer)].reserve_slots<uint8_t>(view.backend, view.rows(), view.pitch);
  view.backend.select_top({.cache = view.cache,
                           .scores = out.ties,
                           .counts = counts_.ref().as<int32_t>(),
                           .recent = interval_,
                           .may_be_nan = true,
                           .rows_due = out.rows_due,
                           .keep = keep});
  stays_[index(view.layer)] = keep;
}

void EvictionDraw::draw(const LayerView& view, const ScoreOutput& out) {
  if (sampling_ == EvictionSampling::kTop2d) choose_candidates(view, out);
  view.backend.draw_order({.cache = view.cache,
                           .scores = out.ties,
                           .stays = stays_[index(view.layer)],
                           .seed = seed_,
                           .numbers = numbers_.ref().as<int32_t>(),
                           .tokens_seen = out.device_tokens_seen,
                           .first_head = static_cast<uint32_t>(layer_numbers_[static_cast<size_t>(view.layer)]) << 16,
                           .rows_due = out.rows_due,
                           .drop_newest = interval_,
                           .output = out.scores});
}

}  // namespace kv
