#include "policies/parts/accumulated_attention.h"

#include "kernels/blend.h"
#include "kernels/column_add.h"
#include "kernels/pool.h"
#include "kernels/visibility.h"

namespace kv {

void AccumulatedAttention::add(const LayerView& view, const float* attention, const Segment* segments, float scale) {
  block_mean_.reserve(view.backend, DType::f32, view.rows() * view.pitch);
  float* mean = block_mean_.ref().as<float>();
  view.backend.group_mean({.input = attention,
                           .output = mean,
                           .lengths = view.cache.lengths,
                           .rows = view.rows(),
                           .group = view.group(),
                           .pitch = view.pitch});
  if (scale != 1) {
    view.backend.blend({.a = mean,
                        .b = mean,
                        .weight_a = scale,
                        .weight_b = 0,
                        .output = mean,
                        .lengths = view.cache.lengths,
                        .rows = view.rows(),
                        .pitch = view.pitch});
  }
  view.backend.column_add({.cache = view.cache,
                           .segments = segments,
                           .segment_count = static_cast<int64_t>(view.segments.size()),
                           .addend = mean,
                           .pitch = view.pitch,
                           .count = 1,
                           .pool_columns = view.columns});
}

void AccumulatedAttention::score(const LayerView& view, const ScoreOutput& out, Normalize normalize) const {
  view.backend.column_mean({.cache = view.cache, .count = 1, .scores = out.scores, .pitch = out.pitch});
  if (normalize == Normalize::none) return;
  view.backend.visibility({.cache = view.cache,
                           .tokens_seen = out.device_tokens_seen,
                           .rows_due = out.rows_due,
                           .scores = out.scores,
                           .pitch = out.pitch});
}

}  // namespace kv
