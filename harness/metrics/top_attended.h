#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/metrics/metric.h"

namespace kv {

// The keys that each query head attends to most in the full-cache pass: the hard top-k region of 003 Sec. 3.2, in which
// a token is useful to a query. Of every stride-th query that sees more than top_k keys; ties to the newer key, as in
// `survival`. Needs BaselineNeeds::projections.
class TopAttended {
 public:
  TopAttended(int top_k, int stride) : top_k_(top_k), stride_(stride) {}

  // Sets are made a layer at a time, when the first is asked for.
  void begin(const CaseView& view);
  bool measures(int32_t position) const { return position >= top_k_ && position % stride_ == 0; }
  // Of a measured query: [top_k] positions, ascending. Valid until the next call of begin.
  std::span<const int32_t> at(int layer, int sequence, int q_head, int32_t position);

 private:
  using Positions = std::vector<int32_t>;  // [q_heads, measured queries, top_k]

  int64_t first_measured() const { return (top_k_ + int64_t{stride_} - 1) / stride_; }  // in strides
  int64_t measured_before(int64_t length) const;
  Positions make(int layer, int sequence) const;

  int top_k_;
  int stride_;
  CaseView view_;
  std::vector<std::vector<Positions>> layers_;  // [layers][sequences], empty until made
};

}  // namespace kv
