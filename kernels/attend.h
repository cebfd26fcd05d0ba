#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// Causal grouped-query attention of a packed block of new tokens over the paged, ragged cache.
// The block's own keys are in the cache already: in every row they are the last `count` slots, so the i-th query of a
// segment sees slots [0, length − count + i] of its sequence's rows. Query head h reads KV head h / group,
// group = q_heads / kv_heads. Softmax over exactly the resident entries (renormalised after evictions), but those that
// have expired (PagedView::expires): the i-th query, at position first_position + i, sees no slot with expires <= that.
// The block's own entries outlive their own query.
//
// Column statistics, each optional (null = not wanted), per query head over the block's queries of the sequence:
//   column_sums[row, g, slot] = Σ_i A_ij     column_max[row, g, slot] = max_i A_ij     (A = probability, f32)
// Written for slots [0, length) of rows whose segment has count > 0; other places stay untouched.
// log_sums[token, q_head] = ln Σ e^logit over what the query sees, optional, too: with it whoever has the queries knows
// what probability an entry got, and reads keys once (kernels/window_attention.h).
// Work is split in fixed pieces: results do not depend on the number of threads.
// `on_any_card`: a backend that has faster kernels for one kind of card leaves them aside. For tests, which show on
// one machine what others run.
struct AttendArgs {
  ConstRef queries;  // [tokens, q_heads, head_dim], post-RoPE
  PagedView cache;
  const Segment* segments = nullptr;  // [segment_count], at most one a sequence
  int64_t segment_count = 0;
  int64_t max_count = 0;     // largest count, known on the host
  Ref output;                // [tokens, q_heads, head_dim]
  Slots<float> column_sums;  // row · group + g, as column_max; pitch >= cache.max_length
  Slots<float> column_max;
  float* log_sums = nullptr;  // [tokens, q_heads]
  int q_heads = 0;
  float scale = 0;  // 1 / sqrt(head_dim)
  bool on_any_card = false;
};

namespace cpu {
void attend(const AttendArgs& args);
}
namespace cuda {
void attend(const AttendArgs& args);
}

}  // namespace kv
