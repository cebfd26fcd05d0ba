// Global: the best entries of all layers and heads of a sequence stay, whichever head they are in.
// Paper: 003, "global retention", Sec. 4.2 (one top-k over everything at an event), for any scorer here; scores of
// different layers must then be comparable, as 003's retention is by construction and attention nearly is.
//   floor f: the best int((1 − f) κ) a head on average, chosen among all, then int(f κ) more for each head, as the
//   released code has it. scope: layer pools the heads of each layer alone (the code's layer-wise variant).
// Deviations: totals are exact here: what heads without so many entries leave of the floor goes to the others in turn,
// the lower layer, then the lower head first (the code leaves it unused, and counts one entry to the wrong head).
// Protected entries are a head's own. The released threshold on scores is a size that no budget asks for, so it is not
// here.

#include <algorithm>

#include "policies/parts/options.h"
#include "policies/parts/pooled_counts.h"
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
    const auto apart = static_cast<int>(floor_ * args.kept);
    pooled_.count(args, scope_, args.kept - apart, 0, "global", counts);
    if (apart == 0) return;
    const size_t layers = scope_ == PooledCounts::Scope::kModel ? args.layers.size() : 1;
    for (int s = 0; s < args.sequences; ++s) {
      for (size_t first = 0; args.is_due(s) && first < args.layers.size(); first += layers) {
        add_floor(args, s, first, layers, apart, counts);
      }
    }
  }

 private:
  // To the heads of one pool: layers [first, first + layers) of a sequence.
  static void add_floor(const AllocateArgs& args, int sequence, size_t first, size_t layers, int apart,
                        std::span<int32_t> counts) {
    int64_t left = int64_t{apart} * args.kv_heads * static_cast<int64_t>(layers);
    for (int more = apart; left > 0; more = 1) {
      for (size_t layer = first; layer < first + layers; ++layer) {
        for (int head = 0; head < args.kv_heads && left > 0; ++head) {
          const auto row = static_cast<size_t>(sequence * args.kv_heads + head);
          int32_t& count = counts[layer * static_cast<size_t>(args.rows()) + row];
          const int32_t room = args.layers[layer].lengths[row] - count;
          const auto added = static_cast<int32_t>(std::min<int64_t>({more, room, left}));
          count += added;
          left -= added;
        }
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
