#include "sim/replay/ranker.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/keep_recent.h"

namespace kv {

// Of the newest `window` tokens of every sequence a vector each, of one layer, kept across blocks.
class Ranker::Recent {
 public:
  Recent(Backend& backend, DType dtype, int sequences, int window, int64_t width)
      : backend_(backend),
        sequences_(sequences),
        window_(window),
        width_(width),
        vectors_(backend, dtype, sequences * window * width) {}

  // Numbers until tokens have brought others.
  void fill(float value) {
    const std::vector<float> values(static_cast<size_t>(vectors_.elements()), value);
    vectors_.upload(values.data(), vectors_.bytes());
  }

  void push(std::span<const Segment> segments, const Segment* on_device, int32_t max_count, ConstRef vectors) {
    backend_.keep_recent({.vectors = vectors,
                          .segments = on_device,
                          .segment_count = std::ssize(segments),
                          .max_count = max_count,
                          .window = window_,
                          .width = width_,
                          .recent = vectors_.ref()});
  }
  size_t bytes_of_sequence() const { return vectors_.bytes() / static_cast<size_t>(sequences_); }
  ConstRef vectors() const { return vectors_.ref(); }

 private:
  Backend& backend_;
  int sequences_;
  int window_;
  int64_t width_;
  Tensor vectors_;
};

Ranker::Ranker(Backend& backend, const SourceInfo& info, const Policy& policy, int sequences, int interval,
               int first_column)
    : backend_(backend),
      name_(policy.scorer_name),
      scorer_(*policy.scorer),
      needs_(scorer_.needs()),
      window_(needs_.window(interval)),
      first_column_(first_column),
      score_memory_(static_cast<size_t>(info.layers)),
      tie_memory_(static_cast<size_t>(info.layers)),
      scores_(static_cast<size_t>(info.layers)),
      ties_(static_cast<size_t>(info.layers)) {
  if (window_ == 0) return;
  const int64_t query = static_cast<int64_t>(info.q_heads) * info.head_dim;
  for (int layer = 0; layer < info.layers; ++layer) {
    recent_.emplace_back(backend, backend.activation_type(), sequences, window_, query);
    if (!needs_.log_sums) continue;
    recent_log_sums_.emplace_back(backend, DType::kF32, sequences, window_, info.q_heads);
    recent_log_sums_.back().fill(
        std::numeric_limits<float>::infinity());  // queries that attended to nothing (Loop::fill) leave nothing
  }
}

Ranker::~Ranker() = default;
Ranker::Ranker(Ranker&&) noexcept = default;

size_t Ranker::query_bytes() const {
  size_t bytes = 0;
  for (const std::vector<Recent>* of_layers : {&recent_, &recent_log_sums_}) {
    for (const Recent& recent : *of_layers) bytes += recent.bytes_of_sequence();
  }
  return bytes;
}

void Ranker::push(int layer, const Block& block, ConstRef queries) {
  if (!recent_.empty())
    recent_[static_cast<size_t>(layer)].push(block.segments, block.on_device(), block.max_count, queries);
}

LayerView Ranker::seen(LayerView layer) const {
  if (needs_.columns(1) > 0) {
    layer.columns += first_column_;
    layer.cache.columns += first_column_;
  } else {
    layer.columns = nullptr;
    layer.cache.columns = nullptr;
  }
  if (!scorer_.reads_column_sums()) layer.column_sums = {};
  layer.window = window_;
  return layer;
}

void Ranker::observe(const LayerView& layer) {
  if (!recent_log_sums_.empty()) {
    int32_t most = 0;
    for (const Segment& segment : layer.segments) most = std::max(most, segment.count);
    recent_log_sums_[static_cast<size_t>(layer.layer)].push(layer.segments, layer.device_segments, most,
                                                            {layer.log_sums, DType::kF32});
  }
  scorer_.observe(seen(layer));
}

void Ranker::score(const LayerView& layer, const Due& due) {
  const auto index = static_cast<size_t>(layer.layer);
  scores_[index] = score_memory_[index].reserve_slots<float>(backend_, layer.rows(), layer.pitch);
  if (scorer_.has_ties()) {
    ties_[index] = tie_memory_[index].reserve_slots<float>(backend_, layer.rows(), layer.pitch);
  }
  LayerView view = seen(layer);
  if (!recent_.empty()) {
    find_rows(due.tokens_seen());
    view.window_queries = recent_[index].vectors();
    view.window_rows = rows_.ref().as<int32_t>();
  }
  if (!recent_log_sums_.empty()) view.window_log_sums = recent_log_sums_[index].vectors().as<float>();
  scorer_.score(view, {.scores = scores_[index],
                       .ties = ties_[index],
                       .rows_due = due.device_rows(),
                       .sequences_due = due.sequences(),
                       .tokens_seen = due.tokens_seen(),
                       .device_tokens_seen = due.device_tokens_seen()});
}

// The i-th oldest of a sequence's window is that of position seen − window + i, in its place modulo the window; where
// there is no such position, a place that no token has come for.
void Ranker::find_rows(std::span<const int32_t> tokens_seen) {
  if (std::ranges::equal(tokens_seen, rows_of_)) return;  // layers of one event
  rows_of_.assign(tokens_seen.begin(), tokens_seen.end());
  std::vector<int32_t> rows;
  int32_t first = 0;
  for (const int32_t seen : tokens_seen) {
    for (int i = 0; i < window_; ++i) rows.push_back(first + (seen + i) % window_);
    first += window_;
  }
  rows_.reserve(backend_, DType::kI32, std::ssize(rows));
  rows_.upload(rows.data(), rows.size() * sizeof(int32_t));
}

ScoredLayer Ranker::scored(const LayerView& layer) const {
  const auto index = static_cast<size_t>(layer.layer);
  KV_CHECK(layer.pitch == scores_[index].pitch);
  return {.cache = layer.cache, .lengths = layer.lengths, .scores = scores_[index], .ties = ties_[index]};
}

}  // namespace kv
