// KeyDiff: keys that point away from the average key stay.
// Paper: Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction" (NeurIPS 2025); 002's π2.
//   s_j = −cos(k_j, anchor),  anchor = mean over the KV head's resident entries of k/‖k‖ (post-RoPE).
// Protects nothing unless asked; 002 calibrates and runs it with sinks 4 and recent 1.
// Deviation: one pass over everything resident, as in kvpress; the paper runs block by block through the prompt, which
// is what decode-time pruning does.

#include "kernels/key_difference.h"
#include "policies/parts/protected_ends.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class KeyDiff final : public ProtectedEnds {
 public:
  explicit KeyDiff(Params& params) : ProtectedEnds(params, {.sinks = " (002: 4)", .recent = " (002: 1)"}) {}

  void score(const LayerView& view, const ScoreOutput& out) override {
    view.backend.key_difference({.cache = view.cache, .rows_due = out.rows_due, .scores = out.scores});
  }
};

const RegisterPolicy registered{{
    .name = "keydiff",
    .summary = "keys unlike the average key stay (Park et al. 2025; pi2 of 002)",
    .make = [](Params& params) { return std::make_unique<KeyDiff>(params); },
}};

}  // namespace

}  // namespace kv
