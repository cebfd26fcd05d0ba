#pragma once

#include <vector>

#include "kernels/attention_columns.h"
#include "kernels/tensor.h"
#include "sim/policy/layer_view.h"

namespace kv {

// The part of a segment in suffix k of the interval in which it ends, but for what is in a shorter one, too; of no
// token where there is none.
Segment part_of(const Segment& segment, const Suffixes& suffixes, int k);

// What a block of several tokens gives the suffixes: its column sums are those of all its queries, so the late ones
// attend once more, in parts of which each lies in a suffix wholly or not at all. A block of single tokens is such a
// part, and needs none of this: what is here works on the host and is nothing to record.
class LateAttention {
 public:
  // Of a block that was just attended, for the suffix columns of `columns`.
  void add(const LayerView& view, AttentionColumnsAddArgs columns);

 private:
  // The parts in one suffix, where there are any.
  struct Part {
    int max_count = 0;
    int64_t first_word = 0;  // in words_: segments, then the lengths of rows as its last query sees them
  };
  std::vector<Part> lay_out(const LayerView& view, const Suffixes& suffixes);

  std::vector<int32_t> rows_;   // of the block's tensors, which are late
  std::vector<int32_t> words_;  // these, and what parts are made of
  Tensor on_device_;
  Tensor queries_, outputs_, sums_;
};

}  // namespace kv
