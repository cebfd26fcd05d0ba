#pragma once

#include "kernels/paged.h"

namespace kv {

// Quest's choice of what a query reads (Tang et al. 2024; kernels/page_bounds.h has the bounds). With q the one query
// of a segment, of page p of a row
//   u_p = Σ_d max(q_d · min_p[d], q_d · max_p[d]),
// the most that q · key can be of any key in it; each sum in f32, in the order of d. One set a KV head goes by the
// largest u_p of its group's query heads, one a query head by its own.
// Of a row's P = ceil(length / 16) pages are read those that hold one of the newest `newest` slots, and of the others
// those of the largest u_p, until `pages` are read; the newer page first among equals. With P <= pages: all of them.
// `pages` never turns away what holds the newest slots. Queries and keys are finite; a sum that is none counts as +∞.
// Written: a page table of the chosen, in order of position, −1 behind them, and how many entries they hold; so attend
// reads them by a PagedView with these. Rows of segments of more or fewer than one token are written whole.
struct SelectPagesArgs {
  ConstRef queries;                   // [tokens, q_heads, head_dim], post-RoPE
  PagedView cache;                    // with bounds
  const Segment* segments = nullptr;  // [segment_count], one for each sequence
  int64_t segment_count = 0;
  int q_heads = 0;
  bool per_query_head = false;    // rows of what is written: sequence · q_heads + query head, else those of the cache
  int pages = 0;                  // >= 1
  int newest = 0;                 // >= 1: so the last page, which is not full, is always read
  int32_t* page_table = nullptr;  // [rows, cache.max_pages]
  int32_t* lengths = nullptr;     // [rows]
};

namespace cpu {
void select_pages(const SelectPagesArgs& args);
}
namespace cuda {
void select_pages(const SelectPagesArgs& args);
}

}  // namespace kv
