#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/metric.h"

namespace kv {

// Oracle importance (002 Eq. 4; policies.md 2.7 a) of cache entries at an event, from the full-cache pass:
//   I_j = combine over the query heads h of a KV head of (max over future queries i of A^(h)_ij) · ‖v_j W_O^(h)‖₂.
// The future of an event at `tokens_seen` is the statistics blocks of the baseline that *begin* at or after it: all
// future queries where events fall on block boundaries, else those after the rest of the block that straddles the
// event. The one place for what 002 leaves open, each reading an option of the metrics that judge by importance:
//   group      002 indexes heads and does not say how the query heads of a group share a KV head: mean, max or sum.
//   future     002's K_max (its value is not printed): the first N queries of that future, all where fewer are left;
//              0: all. Statistics come in whole blocks and metrics of one run share them, so N must be a multiple of
//              `block`, which must be given with it: rounding would depend on the other metrics.
//   normalise  002 App. E, "intra-layer normalization", without a formula. layer: Ĩ = I / Σ I over the KV heads of the
//              layer and the entries that the event is judged over, so that a layer's total is 1. At a one-shot event
//              those are all positions of the context, as in 002; at a later one the entries still resident. none: I.
class FutureImportance {
 public:
  enum class Group : uint8_t { mean, max, sum };
  enum class Normalise : uint8_t { layer, none };
  struct Options {
    Group group = Group::mean;
    Normalise normalise = Normalise::layer;
    int block = 0;   // of the statistics, in tokens; 0: the case's interval
    int future = 0;  // in queries; 0: all
  };

  static Options options(Params& params);

  explicit FutureImportance(const Options& options) : options_(options) {}
  BaselineNeeds needs() const { return {.statistics_block = options_.block, .block_max = true, .value_norms = true}; }

  // Tables are built a layer at a time, when its first event comes.
  void begin(const CaseView& view);
  // A reason why this source has no importance, or null.
  const char* missing() const;
  // I [positions] for positions [0, tokens_seen) of a row; empty when no block begins after the event. Valid until the
  // next call of begin.
  std::span<const float> at(int layer, int row, int32_t tokens_seen);
  // Ĩ = I / divisor(Σ I over the layer).
  double divisor(double layer_total) const { return options_.normalise == Normalise::layer ? layer_total : 1.0; }

 private:
  struct Table {
    int64_t first_block = 0;
    std::vector<float> importance;
  };
  using Row = std::vector<Table>;  // ascending first_block

  int64_t block_after(int32_t tokens_seen) const;
  void build(int layer);
  std::vector<int64_t> event_blocks(int sequence) const;
  void add_head(int layer, int sequence, int q_head, std::span<const float> norms, Row& row);
  void add_block(int layer, int sequence, int q_head, int64_t block, std::vector<float>& most);

  Options options_;
  CaseView view_;
  std::vector<std::vector<Row>> layers_;  // [layers][rows], empty until built
  std::vector<float> scratch_;
};

}  // namespace kv
