#include "policies/parts/accumulated_attention.h"

#include "kernels/blend.h"
#include "kernels/column_add.h"
#include "kernels/pool.h"
#include "kernels/visibility.h"

namespace kv {

void AccumulatedAttention::add(const LayerView& view, Slots<const float> attention, const Segment* segments,
                               const uint8_t* sequences, float scale) {
  const Slots<float> mean = block_mean_.reserve_slots<float>(view.backend, view.rows(), attention.pitch);
  view.backend.group_mean(
      {.input = attention, .output = mean, .lengths = view.cache.lengths, .rows = view.rows(), .group = view.group()});
  if (scale != 1) {
    view.backend.blend({.a = mean,
                        .b = mean,
                        .weight_a = scale,
                        .weight_b = 0,
                        .output = mean,
                        .lengths = view.cache.lengths,
                        .rows = view.rows()});
  }
  view.backend.column_add({.cache = view.cache,
                           .segments = segments,
                           .segment_count = static_cast<int64_t>(view.segments.size()),
                           .sequences = sequences,
                           .addend = mean,
                           .count = 1,
                           .pool_columns = view.columns});
}

void AccumulatedAttention::score(const LayerView& view, const ScoreOutput& out, Normalize normalize) const {
  view.backend.column_mean({.cache = view.cache, .count = 1, .scores = out.scores});
  if (normalize == Normalize::kNone) return;
  view.backend.visibility(
      {.cache = view.cache, .tokens_seen = out.device_tokens_seen, .rows_due = out.rows_due, .scores = out.scores});
}

}  // namespace kv
