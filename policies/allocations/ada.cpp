// Ada-KV: heads compete for a common budget with their scores; a safeguard leaves each its own best.
// Paper: Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM Inference"
// (2024); as kvpress computes it: of κ entries a head, each keeps its own best int(0.2 κ); the
// highest scores of the layer fill κ · heads. Option `scope: model` lets the heads of all layers compete, which the
// paper does not: scores of different layers must then be comparable.
// Deviations: kvpress masks what is evicted and frees nothing; here it is gone. Protected entries count as a head's
// own, before its best. What a layer without so many entries leaves goes to the others (sim/budget/divide.h). Equal
// scores: newer position, then lower head, then lower layer (kernels/select_pooled.h).

#include "policies/parts/options.h"
#include "policies/parts/pooled_counts.h"
#include "sim/budget/divide.h"
#include "sim/policy/allocation.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class Ada final : public Allocation {
 public:
  explicit Ada(Params& params)
      : safeguard_(fraction_option(params, "safeguard", 0.2, "share of the mean budget that each head keeps anyway")),
        whole_model_(params.get("scope", "layer", {"layer", "model"},
                                "whose heads compete: those of a layer (as published) or all") == "model") {}

  bool keeps_protected() const override { return true; }
  int64_t most_kept(int64_t kept, int layers, int kv_heads) const override {
    return kept * kv_heads * (whole_model_ ? layers : 1);
  }

  void allocate(const AllocateArgs& args, std::span<int32_t> counts) override {
    const auto scope = whole_model_ ? PooledCounts::Scope::kModel : PooledCounts::Scope::kLayer;
    pooled_.count(args, scope, args.kept, static_cast<int>(safeguard_ * args.kept), "ada", counts);
    for (int s = 0; s < args.sequences; ++s) {
      if (args.is_due(s)) fill_up(args, s, counts);
    }
  }

 private:
  double safeguard_;
  bool whole_model_;
  PooledCounts pooled_;
};

const RegisterAllocation registered{{
    .name = "ada",
    .summary = "heads of a layer compete with their scores, with a safeguard each (Ada-KV, Feng et al. 2024)",
    .make = [](Params& params) { return std::make_unique<Ada>(params); },
}};

}  // namespace

}  // namespace kv
