// Observed attention: the mean attention an entry has received from the queries that have seen it.
// Source: kvpress ObservedAttentionPress:  s_j = (1/(T − j)) Σ_i (1/g) Σ_{h in group} A_ij^(h).
// Protects nothing. Under decode-time pruning A is the attention over the entries resident when the query came.

#include "policies/parts/accumulated_attention.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class ObservedAttention final : public Scorer {
 public:
  Needs needs() const override { return {.entry_columns = 1, .column_sums = true}; }
  Protection protects(int, int) const override { return {}; }
  void observe(const LayerView& view) override { attention_.observe(view); }
  void score(const LayerView& view, const ScoreOutput& out) override {
    attention_.score(view, out, AccumulatedAttention::Normalize::kVisibility);
  }

 private:
  AccumulatedAttention attention_;
};

const RegisterPolicy registered{{
    .name = "observed-attention",
    .summary = "mean attention received from the queries that saw the entry (kvpress)",
    .make = [](Params&) { return std::make_unique<ObservedAttention>(); },
}};

}  // namespace

}  // namespace kv
