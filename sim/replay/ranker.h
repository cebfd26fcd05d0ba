#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "sim/cache/block.h"
#include "sim/policy/allocation.h"
#include "sim/policy/policy.h"
#include "sim/replay/due.h"

namespace kv {

// One scorer at work in a loop: what it wants prepared is prepared here, and its scores wait here until the cut.
// Several may watch the same pass; each sees its own entry columns and window of queries.
class Ranker {
 public:
  // Its columns are [first_column, first_column + needs().columns(group)) of the cache's.
  Ranker(Backend& backend, const SourceInfo& info, const Policy& policy, int sequences, int interval, int first_column);
  ~Ranker();
  Ranker(Ranker&&) noexcept;

  // Whose scores they are.
  const std::string& name() const { return name_; }
  const Needs& needs() const { return needs_; }
  bool reads_column_sums() const { return scorer_.reads_column_sums(); }
  // Of a sequence, however many entries it holds: the newest queries that it judges by, of all layers.
  size_t query_bytes() const;
  // Of whose entries it gives no score.
  Protection protects(int kept, int interval) const { return scorer_.protects(kept, interval); }

  // Takes up the block's queries of a layer, before it is attended.
  void push(int layer, const Block& block, ConstRef queries);
  void observe(const LayerView& layer);
  // Scores of the due rows, at an event.
  void score(const LayerView& layer, const Due& due);
  // The layer at the last event.
  ScoredLayer scored(const LayerView& layer) const;

 private:
  class Recent;
  // Where the newest queries lie, for rows_.
  void find_rows(std::span<const int32_t> tokens_seen);
  // The layer as this scorer sees it.
  LayerView seen(LayerView layer) const;

  Backend& backend_;
  std::string name_;
  Scorer& scorer_;
  Needs needs_;
  int window_;  // queries
  int first_column_;
  std::vector<Recent> recent_,
      recent_log_sums_;           // [layers], of queries; empty where no window, or none of it, is wanted
  std::vector<int32_t> rows_of_;  // tokens seen
  Tensor rows_;                   // LayerView::window_rows after these
  std::vector<Tensor> score_memory_, tie_memory_;  // [layers]
  std::vector<Slots<float>> scores_, ties_;        // [layers], of the last event
};

}  // namespace kv
