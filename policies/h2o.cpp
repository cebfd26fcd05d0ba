// H2O, heavy hitters: keep what attention has favoured so far, and the newest entries.
// Paper: Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of LLMs" (NeurIPS 2023); the block
// variant is ForesightKV's baseline (001, App. E.2).
//   acc_j = Σ over every query i that has seen entry j of (1/g) Σ_{h in group} A_ij^(h),  A over the entries resident
//   then, renormalised by earlier evictions;  keep the largest acc and the newest `recent`.
// mode=block:    an event every L tokens, the newest L protected (001).
// mode=original: an event after every token, half of the budget recent; the prefix counts with all of its queries.
// Deviations: one kept set a KV head, mean over its query heads (the original works on expanded heads). Running
// accumulators instead of cached queries, so the first event of the block mode counts every query of the prefix, where
// released code sees only those it still caches; `queries: N` counts as code does that caches N. The
// original's budgets are 10 % of the prompt each; here half of the budget each, and "recent" counts only tokens in the
// cache, not the upcoming one. The released block code clears its sums when an event finds less than the budget
// resident; such events do not happen here.

#include <fmt/format.h>

#include "kernels/error.h"
#include "policies/parts/accumulated_attention.h"
#include "policies/parts/cached_queries.h"
#include "policies/parts/options.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class H2O final : public Scorer {
 public:
  explicit H2O(Params& params)
      : original_(params.get("mode", "block", {"block", "original"},
                             "block: prune every interval (001 App. E.2); original: prune after every token") ==
                  "original"),
        recent_(option_at_least(params, -1, "recent", -1,
                                "newest entries that always stay; -1: the interval in block mode, half of the kept "
                                "entries in original mode and in one-shot compression")),
        normalize_(params.get("normalize", "none", {"none", "age"},
                              "age: divide the sum by the number of queries that have seen the entry") == "age"
                       ? AccumulatedAttention::Normalize::kVisibility
                       : AccumulatedAttention::Normalize::kNone),
        queries_(option_at_least(params, 0, "queries", 0,
                                 "queries that count at an event: the newest N since the event before; 0: all")) {}

  Needs needs() const override {
    return {.entry_columns = 1, .column_sums = true, .window_queries = queries_, .even_intervals = queries_ > 0};
  }
  int interval(int wanted) const override { return original_ && wanted > 0 ? 1 : wanted; }
  Protection protects(int kept, int interval) const override { return {.recent = recent(kept, interval)}; }

  void check_budget(int kept, int interval) const override {
    if (const int newest = recent(kept, interval); kept <= newest) {
      const char* what = recent_ < 0 ? "interval" : "newest entries protected,";
      throw UserError(fmt::format("h2o: budget {} must exceed the {} {}", kept, what, newest));
    }
    if (queries_ > kept + interval) {
      throw UserError(fmt::format("h2o: queries = {}: expected at most {}, the tokens before the first event, or 0",
                                  queries_, kept + interval));
    }
  }

  void begin(const BatchShape& shape) override {
    if (queries_ > 0) cached_.begin(shape, queries_);
  }
  void observe(const LayerView& view) override { queries_ > 0 ? cached_.observe(view) : attention_.observe(view); }
  void score(const LayerView& view, const ScoreOutput& out) override {
    queries_ > 0 ? cached_.score(view, out, normalize_) : attention_.score(view, out, normalize_);
  }

 private:
  int recent(int kept, int interval) const {
    if (recent_ >= 0) return recent_;
    return original_ || interval == 0 ? kept / 2 : interval;
  }

  bool original_;
  int recent_;  // −1 = by mode
  AccumulatedAttention::Normalize normalize_;
  int queries_;  // 0 = all
  AccumulatedAttention attention_;
  CachedQueries cached_;
};

const RegisterPolicy registered{{
    .name = "h2o",
    .summary = "accumulated attention and the newest entries (Zhang et al. 2023; block form of 001 App. E.2)",
    .make = [](Params& params) { return std::make_unique<H2O>(params); },
}};

}  // namespace

}  // namespace kv
