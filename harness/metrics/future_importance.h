#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/metrics/metric.h"
#include "sim/budget/oracle_importance.h"

namespace kv {

// Oracle importance (sim/budget/oracle_importance.h) of cache entries at moments of a case, from the full-cache pass.
// The future of a moment at `tokens_seen` is the statistics blocks of the baseline that *begin* at or after it: all
// future queries where moments fall on block boundaries, else those after the rest of the block that straddles one.
class FutureImportance {
 public:
  using Options = ImportanceOptions;
  static Options options(Params& params) { return Options::read(params); }

  explicit FutureImportance(const Options& options) : options_(options) {}
  BaselineNeeds needs() const { return options_.needs(); }

  // Of each sequence, tokens seen, ascending.
  using Moments = std::vector<std::vector<int32_t>>;
  static Moments events_of(const CaseView& view);
  // The ends of the schedule's blocks, each the first at or after a multiple of `every` tokens.
  static Moments ends_of_blocks(const CaseView& view, int every);

  // Tables are built a layer at a time, when its first moment comes.
  void begin(const CaseView& view, Moments moments);
  // A reason why this source has no importance, or null.
  const char* missing() const;
  // I [positions] for positions [0, tokens_seen) of a row; empty when no block begins after that moment. Valid until
  // the next call of begin.
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
  std::vector<int64_t> first_blocks(int sequence) const;
  void add_head(int layer, int sequence, int q_head, std::span<const float> norms, Row& row);

  Options options_;
  CaseView view_;
  Moments moments_;
  std::vector<std::vector<Row>> layers_;  // [layers][rows], empty until built
};

}  // namespace kv
