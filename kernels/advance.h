#pragma once

#include "kernels/paged.h"

namespace kv {

// Takes a batch from one step of decoding to the next without the host. For every segment with count 1 (else it is 0):
//   first_position += 1,  positions[first_token] = first_position,  lengths[layer, row] += 1 for the rows of its
//   sequence in every layer. Pages for the new entries exist already.
struct AdvanceArgs {
  Segment* segments = nullptr;  // [segment_count], at most one a sequence
  int64_t segment_count = 0;
  int32_t* positions = nullptr;  // [tokens]
  int32_t* lengths = nullptr;    // [layers, rows]
  int layers = 0;
  int64_t rows = 0;
  int kv_heads = 0;
};

namespace cpu {
void advance(const AdvanceArgs& args);
}
namespace cuda {
void advance(const AdvanceArgs& args);
}

}  // namespace kv
