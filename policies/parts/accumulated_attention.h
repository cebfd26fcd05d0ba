#pragma once

#include "kernels/tensor.h"
#include "sim/policy/policy.h"

namespace kv {

// The attention that an entry has received from every query since it was appended, as one float an entry, mean over the
// group's query heads. H2O keeps one sum a query head and averages at the event; the mean is linear, so averaging each
// block's sums first gives the same number with a group-th of the memory.
// Use: needs() asks for entry_columns = 1 and column_sums; observe() after every block; score() at an event.
class AccumulatedAttention {
 public:
  enum class Normalize : uint8_t {
    kNone,
    kVisibility,  // divided by the number of queries that have seen the entry
  };

  // Of the marked sequences; null: of all.
  void observe(const LayerView& view, const uint8_t* sequences = nullptr) {
    add(view, view.column_sums, view.device_segments, sequences);
  }
  // Adds `scale` times the mean over the group of `attention`, a vector a query head, in the rows of the marked
  // sequences whose segment has tokens.
  void add(const LayerView& view, Slots<const float> attention, const Segment* segments, const uint8_t* sequences,
           float scale = 1);
  void score(const LayerView& view, const ScoreOutput& out, Normalize normalize) const;

 private:
  Tensor block_mean_;  // [rows, pitch]
};

}  // namespace kv
