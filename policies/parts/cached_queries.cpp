#include "policies/parts/cached_queries.h"

#include "policies/parts/window_score.h"

namespace kv {

namespace {

constexpr int64_t kIntsOfSegment = sizeof(Segment) / sizeof(int32_t);

void upload(Backend& backend, const std::vector<Segment>& segments, Tensor& tensor) {
  tensor.reserve(backend, DType::kI32, std::ssize(segments) * kIntsOfSegment);
  tensor.upload(segments.data(), segments.size() * sizeof(Segment));
}

const Segment* segments_of(const Tensor& tensor) { return static_cast<const Segment*>(tensor.ref().data); }

}  // namespace

void CachedQueries::begin(const BatchShape& shape, int queries) {
  queries_ = queries;
  interval_ = shape.interval;
  layers_.clear();
  for (int layer = 0; layer < shape.source->layers; ++layer) {
    Counted& counted = layers_.emplace_back();
    for (int s = 0; s < shape.sequences; ++s) counted.segments.push_back({.sequence = s});
    upload(*shape.backend, counted.segments, counted.on_device);
  }
}

void CachedQueries::observe(const LayerView& view) {
  attention_.add(view, view.column_sums, segments_of(layers_[static_cast<size_t>(view.layer)].on_device));
}

void CachedQueries::score(const LayerView& view, const ScoreOutput& out, AccumulatedAttention::Normalize normalize) {
  Counted& counted = layers_[static_cast<size_t>(view.layer)];
  std::vector<Segment> windowed;
  bool any_windowed = false;
  for (Segment& segment : counted.segments) {
    const bool due = out.sequences_due[static_cast<size_t>(segment.sequence)] != 0;
    const bool of_window = due && segment.count == 0;
    any_windowed |= of_window;
    windowed.push_back({.sequence = segment.sequence, .count = of_window ? 1 : 0});
    if (due && queries_ >= interval_) segment.count = 1;
  }
  if (any_windowed) add_window(view, out, windowed);
  upload(view.backend, counted.segments, counted.on_device);
  attention_.score(view, out, normalize);
}

void CachedQueries::add_window(const LayerView& view, const ScoreOutput& out, const std::vector<Segment>& segments) {
  upload(view.backend, segments, windowed_);
  const Slots<float> mean = mean_.reserve_slots<float>(view.backend, view.rows() * view.group(), out.scores.pitch);
  window_score(view, out, WindowAttentionArgs::Mode::kPerQueryHead, mean);
  attention_.add(view, mean, segments_of(windowed_), static_cast<float>(queries_));
}

}  // namespace kv
