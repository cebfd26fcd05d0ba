#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/metrics/metric.h"
#include "sim/budget/oracle_importance.h"

namespace kv {

// Oracle importance (sim/budget/oracle_importance.h) of cache entries at the events of a case, from the full-cache
// pass. The future of an event at `tokens_seen` is the statistics blocks of the baseline that *begin* at or after it:
// all future queries where events fall on block boundaries, else those after the rest of the block that straddles the
// event.
class FutureImportance {
 public:
  using Options = ImportanceOptions;
  static Options options(Params& params) { return Options::read(params); }

  explicit FutureImportance(const Options& options) : options_(options) {}
  BaselineNeeds needs() const { return options_.needs(); }

  // Tables are built a layer at a time, when its first event comes.
  void begin(const CaseView& view);
  // A reason why this source has no importance, or null.
  const char* missing() const;
  // I [positions] for positions [0, tokens_seen) of a row; empty when no block begins after the event. Valid until the
  // next call of begin.
  std::span<const float> at(int layer, int row, int32_t tokens_seen);
  // Ĩ = I / divisor(Σ I over the layer).
  double divisor(double layer_total) const { return options_.divisor(layer_total); }

 private:
  struct Table {
    int64_t first_block = 0;
    std::vector<float> importance;
  };
  using Row = std::vector<Table>;  // ascending first_block

  void build(int layer);
  std::vector<int64_t> event_blocks(int sequence) const;
  void add_head(int layer, int sequence, int q_head, std::span<const float> norms, Row& row);

  Options options_;
  CaseView view_;
  std::vector<std::vector<Row>> layers_;  // [layers][rows], empty until built
};

}  // namespace kv
