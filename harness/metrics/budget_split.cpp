// What dividing one budget over all KV heads of the model buys (002 Eqs. 8 to 10, Fig. 2, Figs. 7 to 9, Table 3), at a
// one-shot event: for every removed fraction x = σ = i / points, i in 0 … points, the eviction loss when the heads
// together keep what the uniform split would, Σ int((1 − σ) · n) of their n entries each, in the policy's order
// (policy_order: protected entries first; no head has to keep any):
//   split_loss_uniform       every head keeps the same share: eviction_loss_curve of metric eviction_curve
//   split_loss_greedy        the greedy split on the hulls (HullSolver; 002 Eq. 10)
//   split_loss_exact         the optimum (solve_exact; Eq. 8), a row with the reason where it is refused
//   split_loss_bound         the hulls' own loss, which no split can undercut
//   split_loss_oracle_order  the greedy split by the heads' oracle orders, then evicted in the policy's (Table 3,
//                            "w/o optimality gap"; greedy is "with")
//   split_gap_exact          (greedy − exact) / exact
// Losses are Ĩ (FutureImportance; 002 App. E), sums over the heads of a layer, means over layers: with normalise=layer
// all that is removed is 1. bound <= exact <= every other; greedy exceeds uniform at most by greedy − bound.
// detail=head adds local_ratio and local_ratio_exact of each layer and KV head, 1 − b / n of the greedy and of the
// exact split (r* of 002 Sec. 4.3). solver=hull leaves out the exact split, which is for small problems. A head without
// importance keeps what is left over.

#include <memory>
#include <numeric>
#include <string>

#include "harness/metrics/future_importance.h"
#include "harness/metrics/importance_order.h"
#include "harness/metrics/metric.h"
#include "harness/metrics/residents.h"
#include "harness/metrics/split_rows.h"

namespace kv {

namespace {

class SplitLosses : public Metric {
 public:
  explicit SplitLosses(Params& params) : importance_(FutureImportance::options(params)) {
    grid_.points = params.get("points", 20, "steps of the grid of removed fractions");
    if (grid_.points < 1) params.fail("points", "expected at least 1");
    grid_.exact = params.get("solver", "exact", {"exact", "hull"},
                             "exact: the optimum too, of up to 4096 entries a head") == "exact";
    grid_.per_head =
        params.get("detail", "none", {"none", "head"}, "head: local ratios, a row a layer and KV head") == "head";
  }

  ObserverNeeds observer_needs() const override { return {.baseline = importance_.needs()}; }

  void begin_case(const CaseView& view) override {
    view_ = view;
    importance_.begin(view, FutureImportance::events_of(view));
    residents_.begin(view.batch);
    grid_.layers = view.batch.source->layers;
    heads_.assign(view.samples.size(), {});
    rows_.assign(view.samples.size(), {});
    evicted_.assign(view.samples.size(), 0);
  }

  void attended(const LayerView& view, ConstRef) override {
    if (!view_.decode_time) residents_.append(view);
  }

  void evicting(const EvictionView& view) override {
    if (view_.decode_time) return;
    for (int s = 0; s < view.layer.sequences; ++s) {
      if (!view.sequences_due[static_cast<size_t>(s)]) continue;
      evicted_[static_cast<size_t>(s)] = 1;
      if (importance_.missing()) continue;
      add_layer(view, s);
      auto& heads = heads_[static_cast<size_t>(s)];
      if (view.layer.layer + 1 < grid_.layers || heads.empty()) continue;
      rows_[static_cast<size_t>(s)] = split_rows(grid_, heads, {.sample = s, .metric = {}});
      heads = {};
    }
    residents_.cut(view, to_host(view.layer.backend, view.keep.data, view.keep.elements()));
  }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) {
      const auto& sample_rows = rows_[static_cast<size_t>(s)];
      if (sample_rows.empty()) rows.push_back({.sample = s, .metric = "split_loss_greedy", .skipped = why_not(s)});
      rows.insert(rows.end(), sample_rows.begin(), sample_rows.end());
    }
  }

 private:
  void add_layer(const EvictionView& view, int s) {
    auto& heads = heads_[static_cast<size_t>(s)];
    const size_t first = heads.size();
    const int number = view_.batch.source->layer_numbers[static_cast<size_t>(view.layer.layer)];
    double total = 0;
    for (int head = 0; head < view.layer.kv_heads; ++head) {
      const int row = s * view.layer.kv_heads + head;
      const auto importance = importance_.at(view.layer.layer, row, view.tokens_seen[static_cast<size_t>(s)]);
      if (importance.empty()) return;
      const auto positions = residents_.row(view.layer.layer, row);
      heads.push_back({number, head, importance_in_order(view, row, positions, importance)});
      total = std::accumulate(heads.back().gains.begin(), heads.back().gains.end(), total);
    }
    if (total <= 0) return;
    const double divisor = importance_.divisor(total);
    for (size_t h = first; h < heads.size(); ++h) {
      for (float& gain : heads[h].gains) gain = static_cast<float>(gain / divisor);
    }
  }

  const char* why_not(int s) const {
    if (view_.decode_time) return "a split needs one-shot compression";
    if (const char* reason = importance_.missing()) return reason;
    return evicted_[static_cast<size_t>(s)] ? "no query follows the event" : "nothing is evicted";
  }

  FutureImportance importance_;
  SplitGrid grid_;
  CaseView view_;
  Residents residents_;
  std::vector<std::vector<OrderedHead>> heads_;  // [sequences] layers so far of an event
  std::vector<std::vector<Measured>> rows_;      // [sequences]
  std::vector<uint8_t> evicted_;                 // [sequences]
};

const RegisterMetric kBudgetSplit{
    {.name = "budget_split",
     .summary =
         "split_loss_{uniform, greedy, exact, bound, oracle_order} over the removed fraction x: eviction loss by "
         "how one budget is divided over all heads, split_gap_exact; one-shot compression (002 Fig. 2)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<SplitLosses>(params); }}};

}  // namespace

}  // namespace kv
