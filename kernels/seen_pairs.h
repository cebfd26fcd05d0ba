#pragma once

#include <cstdint>

#include "kernels/paged.h"

namespace kv {

// Counts on how many entries the queries of a block see, as kernels/attend.h has it (without expiries, of all that is
// in the view): for rows of sequences with a segment
//   pairs[row] += Σ_i |{slot <= length − count + i : expires[slot] > first_position + i}|.
struct SeenPairsArgs {
  PagedView cache;  // after the block was appended
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  int64_t* pairs = nullptr;  // [rows]
};

namespace cpu {
void seen_pairs(const SeenPairsArgs& args);
}
namespace cuda {
void seen_pairs(const SeenPairsArgs& args);
}

}  // namespace kv
