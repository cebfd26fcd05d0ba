#pragma once

#include <vector>

#include "kernels/attention_columns.h"
#include "kernels/tensor.h"
#include "sim/policy/layer_view.h"

namespace kv {

// How many of the segment's newest tokens suffix k has, of the interval in which the segment ends; none of a segment
// that begins before intervals do.
int32_t tokens_in(const Segment& segment, const Suffixes& suffixes, int k);

// What a block of several tokens gives the suffixes: its column sums are those of all its queries, so the late ones
// judge once more, each suffix by itself. A block of single tokens needs none of this: what is here works on the host
// and is nothing to record.
class LateAttention {
 public:
  // Of the block that was just attended: (row · suffixes.count + k) · group + h, for the rows whose segment ends in a
  // suffix; null where none does. It stays until the next call.
  Slots<const float> sums(const LayerView& view, const Suffixes& suffixes);

 private:
  void lay_out(const LayerView& view, const Suffixes& suffixes);

  std::vector<Segment> laid_out_;  // of the block for which the rest holds: it is the same in every layer
  int32_t window_ = 0;             // the most late queries of a sequence
  Tensor rows_;                    // [sequences, window], of the block's tensors
  Tensor counts_;                  // [sequences, suffixes]
  Tensor newest_;                  // [sequences]
  Tensor due_;                     // [rows]
  Tensor sums_;
};

}  // namespace kv
