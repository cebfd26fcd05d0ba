#pragma once

#include <cstdint>

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// What the newest token of a block saw: with newest = first_position + count − 1 of the row's segment, for slots
// [0, length) of the rows of sequences that have a segment (with count 0, too)
//   keep[row, slot] = cache.expires[slot] > newest ? 1 : 0.
// Slots before length − cache.expiring are 1 unread, as are all of a row that is not due. A `keep` for
// kernels/compact.h, which sweeps by it.
struct UnexpiredArgs {
  PagedView cache;                    // with expires
  int layers = 1;                     // whose rows the cache has, one layer's behind another's
  const uint8_t* rows_due = nullptr;  // [rows], null = all
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  Slots<uint8_t> keep;
};

namespace cpu {
void unexpired(const UnexpiredArgs& args);
}
namespace cuda {
void unexpired(const UnexpiredArgs& args);
}

}  // namespace kv
