// KeyDiff: keys that point away from the average key stay.
// Paper: Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction" (NeurIPS 2025); 002's π2.
//   s_j = −cos(k_j, anchor),  anchor = mean over the KV head's resident entries of k/‖k‖ (post-RoPE).
// Protects nothing unless asked; 002 calibrates and runs it with sinks 4 and recent 1.
// Deviation: one pass over everything resident, as in kvpress; the paper runs block by block through the prompt, which
// is what decode-time pruning does.

#include <fmt/format.h>

#include "kernels/error.h"
#include "kernels/key_difference.h"
#include "policies/parts/options.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class KeyDiff final : public Scorer {
 public:
  explicit KeyDiff(Params& params)
      : sinks_(option_at_least(params, 0, "sinks", 0, "first tokens of the sequence that always stay (002: 4)")),
        recent_(option_at_least(params, 0, "recent", 0, "newest entries that always stay (002: 1)")) {}

  Protection protects(int, int) const override { return {.sinks = sinks_, .recent = recent_}; }

  void check_budget(int kept, int) const override {
    const int64_t protect = int64_t{sinks_} + recent_;
    if (kept < protect) {
      throw UserError(fmt::format("keydiff: budget {} is less than the {} protected entries", kept, protect));
    }
  }

  void score(const LayerView& view, const ScoreOutput& out) override {
    view.backend.key_difference({.cache = view.cache, .rows_due = out.rows_due, .scores = out.scores});
  }

 private:
  int sinks_;
  int recent_;
};

const RegisterPolicy registered{{
    .name = "keydiff",
    .summary = "keys unlike the average key stay (Park et al. 2025; pi2 of 002)",
    .make = [](Params& params) { return std::make_unique<KeyDiff>(params); },
}};

}  // namespace

}  // namespace kv
