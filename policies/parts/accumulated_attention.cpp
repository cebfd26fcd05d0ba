#include "policies/parts/accumulated_attention.h"

#include "kernels/column_add.h"
#include "kernels/pool.h"
#include "kernels/visibility.h"

namespace kv {

void AccumulatedAttention::observe(const LayerView& view) {
  block_mean_.reserve(view.backend, DType::f32, view.rows() * view.pitch);
  float* mean = block_mean_.ref().as<float>();
  view.backend.group_mean({.input = view.column_sums,
                           .output = mean,
                           .lengths = view.cache.lengths,
                           .rows = view.rows(),
                           .group = view.group(),
                           .pitch = view.pitch});
  view.backend.column_add({.cache = view.cache,
                           .segments = view.device_segments,
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
