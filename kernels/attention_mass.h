#pragma once

#include "kernels/paged.h"

namespace kv {

// Attention mass that chosen queries put on chosen sets of positions (dilution, evicted mass).
// Query n of the list: `queries[n]` [q_heads, head_dim] of sequence `sequences[n]` sees of the resident
// entries those whose position is <= query_positions[n], and where they expire those that do later. Its set is the
// sorted positions set_positions[set_begin[n] … set_begin[n + 1]).  mass[n, h] = Σ_{slots in set} A_h,slot, softmax
// over the visible residents; 0 where none is visible.
struct AttentionMassArgs {
  ConstRef queries;                          // [count, q_heads, head_dim]
  const int32_t* sequences = nullptr;        // [count]
  const int32_t* query_positions = nullptr;  // [count]
  const int32_t* set_positions = nullptr;
  const int32_t* set_begin = nullptr;  // [count + 1]
  int64_t count = 0;
  PagedView cache;
  int q_heads = 0;
  float scale = 0;
  float* mass = nullptr;  // [count, q_heads]
};

namespace cpu {
void attention_mass(const AttentionMassArgs& args);
}
namespace cuda {
void attention_mass(const AttentionMassArgs& args);
}

}  // namespace kv
