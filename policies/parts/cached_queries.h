#pragma once

#include <vector>

#include "kernels/tensor.h"
#include "policies/parts/accumulated_attention.h"
#include "policies/parts/marked_sequences.h"

namespace kv {

// AccumulatedAttention as code has it that keeps only the newest `queries` queries of a sequence, as the evaluation
// code of R-KV and ForesightKV does: an event counts those of them that came after the event before. So the first event
// misses the older queries of the prefix, and where `queries` is less than the interval, every later one misses the
// start of its block, too. Use: needs() asks for window_queries = queries beside entry_columns = 1 and column_sums;
// `queries` is at most what is resident at the first event.
class CachedQueries {
 public:
  void begin(const BatchShape& shape, int queries);
  void observe(const LayerView& view);
  void score(const LayerView& view, const ScoreOutput& out, AccumulatedAttention::Normalize normalize);

 private:
  void add_window(const LayerView& view, const ScoreOutput& out, const std::vector<Segment>& segments);

  int queries_ = 0;
  int interval_ = 0;
  AccumulatedAttention attention_;
  MarkedSequences counted_;  // whose whole blocks count: those that had their first event
  Tensor windowed_;          // [sequences] segments
  Tensor mean_;              // [rows, group, pitch]
};

}  // namespace kv
