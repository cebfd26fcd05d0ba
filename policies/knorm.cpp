// Knorm: entries with short keys stay.
// Paper: Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression" (EMNLP 2024).
//   s_j = −‖k_j‖₂,  post-RoPE (a rotation keeps lengths, so pre-RoPE keys would rank alike).
// Protects nothing unless asked.
// Deviation: every layer is pruned, as in kvpress' KnormPress; the paper leaves its first two layers whole.

#include "kernels/blend.h"
#include "kernels/value_norms.h"
#include "policies/parts/protected_ends.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class Knorm final : public ProtectedEnds {
 public:
  explicit Knorm(Params& params) : ProtectedEnds(params) {}

  void score(const LayerView& view, const ScoreOutput& out) override {
    PagedView keys = view.cache;
    keys.values = keys.keys;  // the op takes the lengths of whatever lies there
    view.backend.value_norms({.cache = keys, .rows_due = out.rows_due, .scores = out.scores});
    view.backend.blend({.a = out.scores,
                        .b = out.scores,
                        .weight_a = -1,
                        .weight_b = 0,
                        .output = out.scores,
                        .lengths = view.cache.lengths,
                        .rows = view.rows()});
  }
};

const RegisterPolicy registered{{
    .name = "knorm",
    .summary = "entries with short keys stay (Devoto et al. 2024; kvpress KnormPress)",
    .make = [](Params& params) { return std::make_unique<Knorm>(params); },
}};

}  // namespace

}  // namespace kv
