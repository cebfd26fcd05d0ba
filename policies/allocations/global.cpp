// Global: the best entries of all layers and heads of a sequence stay, whichever head they are in.
// Paper: 003, "global retention", Sec. 4.2 (one top-k over everything at an event), for any scorer here; scores of
// different layers must then be comparable, as 003's retention is by construction and attention nearly is.
//   floor f: the best int((1 − f) κ) a head on average, chosen among all, then int(f κ) more for each head, as the
//   released code has it. scope: layer pools the heads of each layer alone (the code's layer-wise variant).
// Deviations: totals are exact here: what heads without so many entries leave goes to all others in turn (fill_up of
// sim/budget/divide.h; the code leaves it unused, and counts one entry to the wrong head).
// Protected entries are a head's own, of which the floor takes none. The released threshold on scores is a size that no
// budget asks for, so it is not here.

#include <algorithm>

#include "policies/parts/options.h"
#include "policies/parts/pooled_counts.h"
#include "sim/budget/divide.h"
#include "sim/policy/allocation.h"

namespace kv {

namespace {

class Global final : public Allocation {
 public:
  explicit Global(Params& params)
      : floor_(fraction_option(params, "floor", 0, "share of the mean budget that each head gets beside the pool")),
        scope_(params.get("scope", "model", {"model", "layer"}, "whose heads share a pool: all, or those of a layer") ==
                       "model"
                   ? PooledCounts::Scope::kModel
                   : PooledCounts::Scope::kLayer) {}

  bool keeps_protected() const override { return true; }
  int64_t most_kept(int64_t kept, int layers, int kv_heads) const override {
    return kept * kv_heads * (scope_ == PooledCounts::Scope::kModel ? layers : 1);
  }

  void allocate(const AllocateArgs& args, std::span<int32_t> counts) override {
    const int unprotected = std::max(0, args.kept - args.protection.sinks - args.protection.recent);
    const int apart = std::min(static_cast<int>(floor_ * args.kept), unprotected);
    pooled_.count(args, scope_, args.kept - apart, 0, "global", counts);
    for (int s = 0; s < args.sequences; ++s) {
      if (!args.is_due(s)) continue;
      add_floor(args, s, apart, counts);
      fill_up(args, s, counts);
    }
  }

 private:
  static void add_floor(const AllocateArgs& args, int sequence, int apart, std::span<int32_t> counts) {
    for (size_t layer = 0; layer < args.layers.size(); ++layer) {
      for (int head = 0; head < args.kv_heads; ++head) {
        const auto row = static_cast<size_t>(sequence * args.kv_heads + head);
        int32_t& count = counts[layer * static_cast<size_t>(args.rows()) + row];
        count = std::min(args.layers[layer].lengths[row], count + apart);
      }
    }
  }

  double floor_;
  PooledCounts::Scope scope_;
  PooledCounts pooled_;
};

const RegisterAllocation registered{{
    .name = "global",
    .summary = "the best entries of all layers and heads stay, whichever head they are in (global retention, 003)",
    .make = [](Params& params) { return std::make_unique<Global>(params); },
}};

}  // namespace

}  // namespace kv
