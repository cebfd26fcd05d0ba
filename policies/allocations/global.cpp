// Global: the best entries of all layers and heads of a sequence stay, whichever head they are in.
// Paper: 003, "global retention", Sec. 4.2 (one top-k over everything at an event), for any scorer here; scores of
// different layers must then be comparable, as 003's retention is by construction and attention nearly is.
//   floor f: the best int((1 − f) κ) a head on average, chosen among all, then int(f κ) more for each head, as the
//   released code has it. scope: layer pools the heads of each layer alone (the code's layer-wise variant).
//   threshold t: of what would stay, only protected entries and scores of at least t do (the code's variant that keeps
//   s >= log τ, where nothing else bounds the cache). Scores are the scorer's own:
//   retention's are logarithms, attention's are shares.
// Deviations: totals are exact here: what heads without so many entries leave goes to all others in turn (fill_up of
// sim/budget/divide.h; the code leaves it unused, and counts one entry to the wrong head).
// Protected entries are a head's own, of which the floor takes none. The code looks at its threshold after every
// forward pass; here the schedule's events do, of which protocol decode has none before the budget is exceeded, and
// from then on one an interval, whatever is there; a capacity has them where it is passed.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/count_at_least.h"
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
                   : PooledCounts::Scope::kLayer),
        has_threshold_(params.has("threshold")),
        threshold_(threshold_option(params)) {}

  bool keeps_total() const override { return !has_threshold_; }
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
    if (has_threshold_) drop_below(args, counts);
  }

 private:
  static float threshold_option(Params& params) {
    const auto value = static_cast<float>(
        params.get("threshold", -std::numeric_limits<double>::infinity(), "lower scores leave, however small a cache"));
    if (params.has("threshold") && !std::isfinite(value)) params.fail("threshold", "expected a number that f32 holds");
    return value;
  }

  // A head's best stay, so those at the threshold and above come first of them.
  void drop_below(const AllocateArgs& args, std::span<int32_t> counts) {
    above_.reserve(args.backend, DType::kI32, std::ssize(counts));
    for (size_t layer = 0; layer < args.layers.size(); ++layer) {
      args.backend.count_at_least({.cache = args.layers[layer].cache,
                                   .scores = args.layers[layer].scores,
                                   .threshold = threshold_,
                                   .sinks = args.protection.sinks,
                                   .recent = args.protection.recent,
                                   .rows_due = args.rows_due,
                                   .counts = above_.ref().as<int32_t>() + static_cast<int64_t>(layer) * args.rows()});
    }
    std::vector<int32_t> above(counts.size());
    above_.download(above.data(), above.size() * sizeof(int32_t));
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto sequence = static_cast<int>(i % static_cast<size_t>(args.rows())) / args.kv_heads;
      if (args.is_due(sequence)) counts[i] = std::min(counts[i], above[i]);
    }
  }

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
  bool has_threshold_;
  float threshold_;
  PooledCounts pooled_;
  Tensor above_;  // [layers, rows]
};

const RegisterAllocation registered{{
    .name = "global",
    .summary = "the best entries of all layers and heads stay, whichever head they are in (global retention, 003)",
    .make = [](Params& params) { return std::make_unique<Global>(params); },
}};

}  // namespace

}  // namespace kv
