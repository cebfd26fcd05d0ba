#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// Survival (003 Fig. 2): for every key the latest query that selected it. Query i of the block selects, per query head,
// either its top_k largest probabilities, or (top_k = 0) the smallest set that reaches `mass`; ties to the newer key.
//   last_selected[row, g, position] = max(previous, position of the selecting query); −1 = never.
// The cache holds every token (full pass): slot = position.
struct SurvivalArgs {
  ConstRef queries;  // [tokens, q_heads, head_dim]
  PagedView cache;
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  int q_heads = 0;
  float scale = 0;
  int top_k = 64;
  float mass = 0;
  Slots<int32_t> last_selected;  // rows · group of them
};

namespace cpu {
void survival(const SurvivalArgs& args);
}
namespace cuda {
void survival(const SurvivalArgs& args);
}

}  // namespace kv
