#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace kv {

// Tokens a page holds. A page belongs to one (sequence, layer, KV head).
inline constexpr int kPageTokens = 16;

// One layer of the cache, as ops see it. A *row* is one (sequence, KV head): row = sequence * kv_heads + head.
// Entry `slot` of a row lives in page page_table[row * max_pages + slot / 16], place slot % 16.
// Slots are in ascending order of position: the oldest entry is slot 0, the newest slot lengths[row] - 1.
// Places beyond lengths[row] hold anything (NaN in tests); unused page-table entries are -1. In a recorded step
// (Backend::record) lengths change from run to run: they decide, max_length only bounds them. Kernels take a view for
// granted; Backend::check_pages looks whether it holds, in debug builds before every op.
struct PagedView {
  ConstRef keys;                       // pool [pages, 16, head_dim], post-RoPE
  ConstRef values;                     // pool [pages, 16, head_dim]
  const int32_t* positions = nullptr;  // pool [pages, 16], absolute token positions
  const float* columns = nullptr;      // pool [pages, 16, column_width]: the policy's per-entry state; null if none
  // pool [pages, 16]: the position from which on queries no longer see the entry; null: they see every entry for ever.
  const int32_t* expires = nullptr;
  ConstRef bounds;  // pool [pages, 2, head_dim]: least and largest of each page's keys (kernels/page_bounds.h); or null
  const int32_t* page_table = nullptr;  // [rows, max_pages]
  const int32_t* lengths = nullptr;     // [rows]
  int64_t pool_pages = 0;               // of every pool
  int64_t rows = 0;
  int64_t max_pages = 0;
  int64_t max_length = 0;  // no length is larger; known on the host
  int64_t expiring = 0;  // with expires: no slot before length − expiring has expired or ever will; known on the host
  int kv_heads = 0;
  int head_dim = 0;
  int column_width = 0;
  // So many rows, from each multiple of it on, may name one another's pages: query heads that read a KV head's entries
  // each for itself (kernels/select_pages.h).
  int sharing_rows = 1;
};

// A run of consecutive tokens of one sequence inside a packed block of tokens.
struct Segment {
  int32_t sequence = 0;
  int32_t first_token = 0;     // its first row in the block's packed tensors
  int32_t count = 0;           // may be 0: a sequence that has ended
  int32_t first_position = 0;  // absolute position of its first token

  friend constexpr bool operator==(const Segment&, const Segment&) = default;
};

}  // namespace kv
