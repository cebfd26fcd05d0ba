// SnapKV: what the newest queries attend to, smoothed over neighbouring entries, is what comes next.
// Paper: Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation" (NeurIPS 2024).
// Four published readings, never switched silently:
//   decode   (001's baseline, R-KV's code): ẑ_ij = max over the group of q_i·k_j/√D, softmax over the entries older
//            than the window only, mean over the window, max-pool; w = 8, kernel 7.
//   kvpress  (002's π1): softmax a query head over all it sees, mean over the window, average-pool with zeros at the
//            edges, mean over the group; w = 32, kernel 7 as in 002 (kvpress itself: 64 and 5).
//   original (released SnapKV): as kvpress with w = 32, kernel 5.
//   wg-kv    (004, App. K): softmax a query head over the entries older than the window only, A^h_ij; then max over the
//            group, mean over the window, max-pool: s_j = max-pool_5 mean_i max_h A^h_ij; w = 256, kernel 5. Not
//            decode's score: there heads share one softmax, here each has its own.
// Protects the window, and no sinks unless asked: 002 (App. E) calibrates and runs it with 4. `recent` protects more,
// so that policies compare by their scores alone (001's H2O protects a whole interval). Ties: max-pooling makes
// plateaus, so the attention before pooling decides among equals, then newer positions. The released codes leave it to
// torch.topk, whose order among equals is not stated: their sets are ours up to such ties. Deviations: original sums
// over the window; the mean ranks alike. It keeps one set a query head, ours is one a KV head, mean over the group,
// because a set a query head multiplies the cache by the group size. Of wg-kv the paper sums over the window, its code
// takes the mean, which ranks alike; both evict a tenth of every head once all heads together hold too much, as here
// the axis capacity with allocation share does (sim/policy/capacity.h).

#include <fmt/format.h>

#include <string>

#include "kernels/error.h"
#include "policies/parts/newest.h"
#include "policies/parts/options.h"
#include "policies/parts/window_score.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

struct Defaults {
  int window;
  int kernel;
  std::string_view pool;
};

Defaults defaults_of(std::string_view mode) {
  if (mode == "kvpress") return {.window = 32, .kernel = 7, .pool = "average"};
  if (mode == "original") return {.window = 32, .kernel = 5, .pool = "average"};
  if (mode == "wg-kv") return {.window = 256, .kernel = 5, .pool = "max"};
  return {.window = 8, .kernel = 7, .pool = "max"};
}

class SnapKV final : public Scorer {
 public:
  explicit SnapKV(Params& params) {
    const std::string mode = params.get("mode", "decode", {"decode", "kvpress", "original", "wg-kv"},
                                        "decode: group-max logits over older entries (001); kvpress: mean over the "
                                        "group after pooling (002); original: the released SnapKV; wg-kv: group-max "
                                        "probabilities over older entries (004)");
    const Defaults defaults = defaults_of(mode);
    is_group_max_ = mode == "decode" || mode == "wg-kv";
    window_ =
        option_at_least(params, 1, "window", defaults.window,
                        "newest queries that judge; their entries always stay (kvpress, original: 32; wg-kv: 256)");
    sinks_ = option_at_least(params, 0, "sinks", 0, "first tokens of the sequence that always stay (002: 4)");
    recent_ = recent_option(params);
    pooled_.kernel = kernel_option(params, defaults.kernel, "width of the pooling (kvpress: 7; original, wg-kv: 5)");
    if (mode == "wg-kv") pooled_.mode = WindowAttentionArgs::Mode::kGroupMaxProbabilityOlder;
    pooled_.pool = params.get("pool", defaults.pool, {"max", "average"},
                              "pooling over neighbouring entries (kvpress, original: average)") == "max"
                       ? PoolArgs::Kind::kMax
                       : PoolArgs::Kind::kAverage;
  }

  Needs needs() const override { return {.window_queries = window_}; }
  bool has_ties() const override { return true; }
  int least_entries() const override { return window_; }
  Protection protects(int, int interval) const override {
    return {.sinks = sinks_, .recent = protected_newest(recent_, window_, interval)};
  }

  void check_budget(int kept, int interval) const override {
    const int newest = protected_newest(recent_, window_, interval);
    if (kept > int64_t{newest} + sinks_) return;
    const std::string what = newest == window_ ? fmt::format("the window {}", window_)
                                               : fmt::format("the {} newest entries protected", newest);
    throw UserError(sinks_ == 0 ? fmt::format("snapkv: budget {} does not exceed {}", kept, what)
                                : fmt::format("snapkv: budget {} does not exceed {} and {} sinks", kept, what, sinks_));
  }

  void score(const LayerView& view, const ScoreOutput& out) override {
    if (is_group_max_) {
      pooled_window_score(view, out, pooled_, out.ties, out.scores);
    } else {
      score_per_query_head(view, out);
    }
  }

 private:
  void score_per_query_head(const LayerView& view, const ScoreOutput& out) {
    const int64_t vectors = view.rows() * view.group();
    const Slots<float> attention = attention_.reserve_slots<float>(view.backend, vectors, out.scores.pitch);
    const Slots<float> smooth = smooth_.reserve_slots<float>(view.backend, vectors, out.scores.pitch);
    window_score(view, out, WindowAttentionArgs::Mode::kPerQueryHead, attention);
    view.backend.pool({.kind = pooled_.pool,
                       .kernel = pooled_.kernel,
                       .input = attention,
                       .output = smooth,
                       .lengths = view.cache.lengths,
                       .rows = view.rows(),
                       .vectors_per_row = view.group(),
                       .drop_newest = window_});
    group_mean(view, smooth, out.scores);
    group_mean(view, attention, out.ties);
  }

  void group_mean(const LayerView& view, Slots<const float> input, Slots<float> output) const {
    view.backend.group_mean({.input = input,
                             .output = output,
                             .lengths = view.cache.lengths,
                             .rows = view.rows(),
                             .group = view.group(),
                             .drop_newest = window_});
  }

  bool is_group_max_ = true;
  int window_ = 0;
  int sinks_ = 0;
  int recent_ = 0;
  PooledWindow pooled_;
  Tensor attention_, smooth_;  // [rows, group, pitch]
};

const RegisterPolicy registered{{
    .name = "snapkv",
    .summary = "pooled attention of the newest queries (Li et al. 2024; modes decode, kvpress, original, wg-kv)",
    .make = [](Params& params) { return std::make_unique<SnapKV>(params); },
}};

}  // namespace

}  // namespace kv
