#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/metric.h"

namespace kv {

// Oracle importance (002; policies.md 2.7 a) of cache entries at an event, from the full-cache pass:
//   I_j = combine over the query heads h of a KV head of (max over future queries i of A^(h)_ij) · ‖v_j W_O^(h)‖₂.
// The future of an event at `tokens_seen` is the statistics blocks of the baseline that *begin* at or after it: all
// future queries where events fall on block boundaries, else those after the rest of the block that straddles the
// event. 002 does not say how the group shares a KV head: mean (default), max and sum are offered.
class FutureImportance {
 public:
  enum class Group : uint8_t { mean, max, sum };

  static Group group_option(Params& params);
  static BaselineNeeds needs(Params& params);

  // Tables are built a layer at a time, when its first event comes.
  void begin(const CaseView& view, Group group);
  // A reason why this source has no importance, or null.
  const char* missing() const;
  // [positions] for positions [0, tokens_seen) of a row; empty when no block begins after the event. Valid until the
  // next call of begin.
  std::span<const float> at(int layer, int row, int32_t tokens_seen);

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

  CaseView view_;
  Group group_ = Group::mean;
  std::vector<std::vector<Row>> layers_;  // [layers][rows], empty until built
  std::vector<float> scratch_;
};

}  // namespace kv
