// Knorm: entries with short keys stay.
// Paper: Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression" (EMNLP 2024).
//   s_j = −‖k_j‖₂,  post-RoPE (a rotation keeps lengths, so pre-RoPE keys would rank alike).
// Protects nothing unless asked.
// Deviation: every layer is pruned, as in kvpress' KnormPress; the paper leaves its first two layers whole.

#include <fmt/format.h>

#include "kernels/blend.h"
#include "kernels/error.h"
#include "kernels/value_norms.h"
#include "policies/parts/options.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class Knorm final : public Scorer {
 public:
  explicit Knorm(Params& params)
      : sinks_(option_at_least(params, 0, "sinks", 0, "first tokens of the sequence that always stay")),
        recent_(option_at_least(params, 0, "recent", 0, "newest entries that always stay")) {}

  Protection protects(int, int) const override { return {.sinks = sinks_, .recent = recent_}; }

  void check_budget(int kept, int) const override {
    const int64_t protect = int64_t{sinks_} + recent_;
    if (kept < protect) {
      throw UserError(fmt::format("knorm: budget {} is less than the {} protected entries", kept, protect));
    }
  }

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

 private:
  int sinks_;
  int recent_;
};

const RegisterPolicy registered{{
    .name = "knorm",
    .summary = "entries with short keys stay (Devoto et al. 2024; kvpress KnormPress)",
    .make = [](Params& params) { return std::make_unique<Knorm>(params); },
}};

}  // namespace

}  // namespace kv
