#include "policies/parts/cached_queries.h"

#include "policies/parts/window_score.h"

namespace kv {

void CachedQueries::begin(const BatchShape& shape, int queries) {
  queries_ = queries;
  interval_ = shape.interval;
  counted_.begin(shape, false);
}

void CachedQueries::observe(const LayerView& view) { attention_.observe(view, counted_.on_device(view.layer)); }

void CachedQueries::score(const LayerView& view, const ScoreOutput& out, AccumulatedAttention::Normalize normalize) {
  std::vector<Segment> windowed;
  bool any_windowed = false;
  for (int s = 0; s < std::ssize(out.sequences_due); ++s) {
    const bool due = out.sequences_due[static_cast<size_t>(s)] != 0;
    const bool of_window = due && !counted_.is_marked(view.layer, s);
    any_windowed |= of_window;
    windowed.push_back({.sequence = s, .count = of_window ? 1 : 0});
    if (due && queries_ >= interval_) counted_.mark(view.layer, s, true);
  }
  if (any_windowed) add_window(view, out, windowed);
  counted_.upload(view.layer);
  attention_.score(view, out, normalize);
}

void CachedQueries::add_window(const LayerView& view, const ScoreOutput& out, const std::vector<Segment>& segments) {
  windowed_.reserve(view.backend, DType::kI32, std::ssize(segments) * (sizeof(Segment) / sizeof(int32_t)));
  windowed_.upload(segments.data(), segments.size() * sizeof(Segment));
  const Slots<float> mean = mean_.reserve_slots<float>(view.backend, view.rows() * view.group(), out.scores.pitch);
  window_score(view, out, WindowAttentionArgs::Mode::kPerQueryHead, mean);
  attention_.add(view, mean, static_cast<const Segment*>(windowed_.ref().data), nullptr, static_cast<float>(queries_));
}

}  // namespace kv
