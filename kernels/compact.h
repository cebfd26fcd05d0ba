#pragma once

#include <cstdint>

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// Physical eviction: the kept entries of each row (keys, values, positions, expiries, columns) move to the front, in
// order. In place: an entry only ever moves towards slot 0. The page table is the caller's to shrink afterwards.
struct CompactArgs {
  PagedView cache;
  Slots<const uint8_t> keep;          // 1 = stays
  const uint8_t* rows_due = nullptr;  // [rows], 0 = leave this row alone; null = all rows
  // Slots of a row, the newest ones, that may leave: all before them stay, whatever `keep` says.
  int64_t newest = INT64_MAX;
  Ref pool_keys;
  Ref pool_values;
  int32_t* pool_positions = nullptr;
  int32_t* pool_expires = nullptr;  // null where the cache stores none
  float* pool_columns = nullptr;
  // [rows], may be cache.lengths: what each due row now holds; null = nobody asks.
  int32_t* lengths = nullptr;
};

namespace cpu {
void compact(const CompactArgs& args);
}
namespace cuda {
void compact(const CompactArgs& args);
}

}  // namespace kv
