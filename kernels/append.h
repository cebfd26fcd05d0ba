#pragma once

#include "kernels/paged.h"

namespace kv {

// Writes the block's keys, values, positions and expiries into the last `count` slots of each row of its sequence;
// entry columns of the new slots start at 0. The pages exist already and cache.lengths already counts the new entries.
struct AppendArgs {
  ConstRef keys;                     // [tokens, kv_heads, head_dim], post-RoPE
  ConstRef values;                   // [tokens, kv_heads, head_dim]
  const int32_t* expires = nullptr;  // [tokens, kv_heads]; null: never, until write_expiries says it
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  int64_t max_count = 0;
  PagedView cache;  // its page table and lengths after growth
  // The pools of `cache`, writable.
  Ref pool_keys;
  Ref pool_values;
  int32_t* pool_positions = nullptr;
  int32_t* pool_expires = nullptr;  // null where the cache stores none
  float* pool_columns = nullptr;    // null when column_width is 0
};

namespace cpu {
void append(const AppendArgs& args);
}
namespace cuda {
void append(const AppendArgs& args);
}

}  // namespace kv
