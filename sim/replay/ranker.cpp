#include "sim/replay/ranker.h"

#include "kernels/keep_recent.h"

namespace kv {

// The newest `window` queries of every sequence of one layer, oldest first, kept across blocks.
class Ranker::RecentQueries {
 public:
  RecentQueries(Backend& backend, int sequences, int window, int64_t query_elements)
      : backend_(backend),
        window_(window),
        query_elements_(query_elements),
        queries_(backend, backend.activation_type(), sequences * window * query_elements) {}

  void push(const Block& block, ConstRef queries) {
    backend_.keep_recent({.vectors = queries,
                          .segments = block.on_device(),
                          .segment_count = std::ssize(block.segments),
                          .window = window_,
                          .width = query_elements_,
                          .recent = queries_.ref()});
  }
  ConstRef view() const { return queries_.ref(); }

 private:
  Backend& backend_;
  int window_;
  int64_t query_elements_;
  Tensor queries_;
};

Ranker::Ranker(Backend& backend, const SourceInfo& info, Scorer& scorer, int sequences, int first_column)
    : backend_(backend),
      scorer_(scorer),
      needs_(scorer.needs()),
      first_column_(first_column),
      scores_(static_cast<size_t>(info.layers)),
      ties_(static_cast<size_t>(info.layers)),
      pitches_(static_cast<size_t>(info.layers), 0) {
  if (needs_.window_queries == 0) return;
  const int64_t query = static_cast<int64_t>(info.q_heads) * info.head_dim;
  for (int layer = 0; layer < info.layers; ++layer) {
    recent_.emplace_back(backend, sequences, needs_.window_queries, query);
  }
}

Ranker::~Ranker() = default;
Ranker::Ranker(Ranker&&) noexcept = default;

void Ranker::push(int layer, const Block& block, ConstRef queries) {
  if (!recent_.empty()) recent_[static_cast<size_t>(layer)].push(block, queries);
}

LayerView Ranker::own(LayerView layer) const {
  if (needs_.entry_columns > 0) {
    layer.columns += first_column_;
    layer.cache.columns += first_column_;
  } else {
    layer.columns = nullptr;
    layer.cache.columns = nullptr;
  }
  if (!needs_.column_sums) layer.column_sums = nullptr;
  if (!recent_.empty()) {
    layer.window = needs_.window_queries;
    layer.window_queries = recent_[static_cast<size_t>(layer.layer)].view();
  }
  return layer;
}

void Ranker::observe(const LayerView& layer) { scorer_.observe(own(layer)); }

void Ranker::score(const LayerView& layer, const Due& due) {
  const auto index = static_cast<size_t>(layer.layer);
  const int64_t slots = layer.rows() * layer.pitch;
  pitches_[index] = layer.pitch;
  scores_[index].reserve(backend_, DType::f32, slots);
  if (scorer_.has_ties()) ties_[index].reserve(backend_, DType::f32, slots);
  scorer_.score(own(layer), {.scores = scores_[index].ref().as<float>(),
                             .ties = scorer_.has_ties() ? ties_[index].ref().as<float>() : nullptr,
                             .pitch = layer.pitch,
                             .rows_due = due.device_rows(),
                             .sequences_due = due.sequences(),
                             .tokens_seen = due.tokens_seen(),
                             .device_tokens_seen = due.device_tokens_seen()});
}

ScoredLayer Ranker::scored(const LayerView& layer) const {
  const auto index = static_cast<size_t>(layer.layer);
  KV_CHECK(layer.pitch == pitches_[index]);
  return {.cache = layer.cache,
          .lengths = layer.lengths,
          .scores = scores_[index].ref().as<float>(),
          .ties = scorer_.has_ties() ? ties_[index].ref().as<float>() : nullptr,
          .pitch = layer.pitch};
}

}  // namespace kv
