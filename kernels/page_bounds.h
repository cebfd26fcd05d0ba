#pragma once

#include "kernels/paged.h"

namespace kv {

// Element-wise bounds of the keys of each page, PagedView::bounds: for the pages of a row that hold slots [first,
// length), over all slots of the page below the length,
//   bounds[page][0][d] = min key[d]      bounds[page][1][d] = max key[d]
// first = length − count of the row's segment: what a block has appended; without segments max(0, length − newest):
// what compaction may have moved. Rows without a segment, or not due, keep theirs. Of pages that a row no longer has
// nothing is said.
struct PageBoundsArgs {
  PagedView cache;
  const Segment* segments = nullptr;  // [segment_count], at most one a sequence; null: whole rows
  int64_t segment_count = 0;
  int64_t max_count = 0;              // largest count, known on the host
  int64_t newest = 0;                 // slots; only without segments
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all
  Ref pool_bounds;                    // [pages, 2, head_dim]: that of the cache, writable
};

namespace cpu {
void page_bounds(const PageBoundsArgs& args);
}
namespace cuda {
void page_bounds(const PageBoundsArgs& args);
}

}  // namespace kv
