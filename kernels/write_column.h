#pragma once

#include <cstdint>

#include "kernels/paged.h"

namespace kv {

// What was known of tokens when they came, written to their entries: for token i of a segment, at position p,
//   columns[row, slot of p, column] = values[first_token + i, head]
// in the rows whose sequence has the segment, where an entry of that position is there (an eviction or an admission may
// have let it go; entries lie in order of position, the block's are among the newest).
struct WriteColumnArgs {
  PagedView cache;
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  const float* values = nullptr;  // [tokens, kv_heads]
  int column = 0;
  float* pool_columns = nullptr;
};

namespace cpu {
void write_column(const WriteColumnArgs& args);
}
namespace cuda {
void write_column(const WriteColumnArgs& args);
}

}  // namespace kv
