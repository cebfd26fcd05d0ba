// R-KV: attention of the newest queries against redundancy among keys.
// Paper: Cai et al., "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models" (NeurIPS 2025).
//   s_j = λ·a_j − (1 − λ)·ρ_j,  a as SnapKV's decode mode (max-pooled, not renormalised),  ρ of kernels/redundancy.h.
// λ = 0.1 is 001's setting; R-KV's own code has 0.07.
// Ties (exact duplicates, or λ = 1): attention before pooling, as in snapkv, then newer positions.
// The window is protected; `recent` protects more, as in snapkv.
// Deviations: similarity of each sequence by itself (the code uses the batch's first row for all). Entries stay in
// order of position, so "most recent" means recent at every event, and max-pooling joins neighbours in the text; the
// code stores what topk returns, in order of score, and so pools over neighbours in score from its second event on.
// retain=first, which is broken there, is not offered. retain=last_percent takes the k-th newest similar key,
// k = n·retain_ratio, as its name says. The released code does not: of the k newest it takes the first, which is what
// retain=last forgives (and since it handles whole batches, those of the first entry for the first k entries).

#include <fmt/format.h>

#include "kernels/blend.h"
#include "kernels/error.h"
#include "kernels/redundancy.h"
#include "policies/parts/newest.h"
#include "policies/parts/options.h"
#include "policies/parts/window_score.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class RKV final : public Scorer {
 public:
  explicit RKV(Params& params)
      : lambda_(fraction_option(params, "lambda", 0.1, "weight of attention; redundancy has 1 - lambda")),
        window_(option_at_least(params, 1, "window", 8, "newest queries that judge; their entries always stay")),
        recent_(recent_option(params)),
        pooled_{.kernel = kernel_option(params, 7, "width of the max-pooling of attention")},
        threshold_(params.get("threshold", 0.5, "cosine above which two keys are near-duplicates")),
        retain_(params.get("retain", "last", {"last", "last_percent"},
                           "which near-duplicate of a key is forgiven: the newest, or the k-th newest") == "last"
                    ? RedundancyArgs::Retain::kLast
                    : RedundancyArgs::Retain::kLastPercent),
        retain_ratio_(
            fraction_option(params, "retain_ratio", 0.2, "with retain last_percent: k as a fraction of the entries")) {}

  Needs needs() const override { return {.window_queries = window_}; }
  bool has_ties() const override { return true; }
  int least_entries() const override { return window_; }
  Protection protects(int, int interval) const override {
    return {.recent = protected_newest(recent_, window_, interval)};
  }

  void check_budget(int kept, int interval) const override {
    const int newest = protected_newest(recent_, window_, interval);
    if (kept > newest) return;
    throw UserError(newest == window_
                        ? fmt::format("r-kv: budget {} does not exceed the window {}", kept, window_)
                        : fmt::format("r-kv: budget {} does not exceed the {} newest entries protected", kept, newest));
  }

  void score(const LayerView& view, const ScoreOutput& out) override {
    const Slots<float> redundancy = redundancy_.reserve_slots<float>(view.backend, view.rows(), out.scores.pitch);
    pooled_window_score(view, out, pooled_, out.ties, out.scores);
    view.backend.redundancy({.cache = view.cache,
                             .threshold = static_cast<float>(threshold_),
                             .retain = retain_,
                             .retain_ratio = static_cast<float>(retain_ratio_),
                             .rows_due = out.rows_due,
                             .scores = redundancy});
    view.backend.blend({.a = out.scores,
                        .b = redundancy,
                        .weight_a = static_cast<float>(lambda_),
                        .weight_b = static_cast<float>(lambda_ - 1),
                        .output = out.scores,
                        .lengths = view.cache.lengths,
                        .rows = view.rows(),
                        .drop_newest = window_});
  }

 private:
  double lambda_;
  int window_;
  int recent_;
  PooledWindow pooled_;
  double threshold_;
  RedundancyArgs::Retain retain_;
  double retain_ratio_;
  Tensor redundancy_;  // [rows, pitch]
};

const RegisterPolicy registered{{
    .name = "r-kv",
    .summary = "attention against redundancy among keys (Cai et al. 2025; lambda as in 001)",
    .make = [](Params& params) { return std::make_unique<RKV>(params); },
}};

}  // namespace

}  // namespace kv
