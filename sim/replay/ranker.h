#pragma once

#include <memory>
#include <vector>

#include "sim/policy/policy.h"
#include "sim/replay/due.h"

namespace kv {

// One scorer at work in a loop: what it wants prepared is prepared here, and its scores wait here until the cut.
// Several may watch the same pass; each sees its own entry columns and window of queries.
class Ranker {
 public:
  // Its columns are [first_column, first_column + needs().entry_columns) of the cache's.
  Ranker(Backend& backend, const SourceInfo& info, Scorer& scorer, int sequences, int first_column);
  ~Ranker();
  Ranker(Ranker&&) noexcept;

  const PolicyNeeds& needs() const { return needs_; }
  Scorer& scorer() const { return scorer_; }

  // Takes up the block's queries of a layer, before it is attended.
  void push(int layer, const Block& block, ConstRef queries);
  void observe(const LayerView& layer);
  // Scores of the due rows, at an event.
  void score(const LayerView& layer, const Due& due);
  // Of the last event.
  ScoredLayer scored(const LayerView& layer) const;

 private:
  class RecentQueries;
  // The layer as this scorer sees it.
  LayerView own(LayerView layer) const;

  Backend& backend_;
  Scorer& scorer_;
  PolicyNeeds needs_;
  int first_column_;
  std::vector<RecentQueries> recent_;  // [layers]; empty where no window is wanted
  std::vector<Tensor> scores_, ties_;  // [layers] of [rows, pitch]
  std::vector<int64_t> pitches_;
};

}  // namespace kv
