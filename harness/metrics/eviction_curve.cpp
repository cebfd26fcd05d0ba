// The whole trade-off from one one-shot replay (002 Fig. 1): for every removed fraction σ on a grid, the share of
// future importance that stays when each (layer, KV head) keeps the first b = int((1 − σ) · n) of its n entries
//   eviction_curve         in the policy's order: protected entries first (sinks, then recent ones), then by score,
//                          equal scores newer first (a scorer's own second key is not known here);
//   eviction_curve_oracle  in order of importance. The vertical distance is the optimality gap, >= 0.
// x = σ = i / points for i in 0 … points. Importance and its future: FutureImportance. Means over layers and heads;
// detail=head adds eviction_curve_head and eviction_curve_oracle_head. Heads without importance count nowhere.

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>

#include "harness/metrics/future_importance.h"
#include "harness/metrics/residents.h"

namespace kv {

namespace {

struct Curve {
  int layer = 0;
  int head = 0;
  std::vector<double> policy;  // [points + 1]
  std::vector<double> oracle;
};

// Slots from the last to leave to the first.
std::vector<int32_t> policy_order(const Protection& protection, std::span<const int32_t> positions,
                                  std::span<const float> scores) {
  const auto category = [&](int32_t slot) {
    if (positions[static_cast<size_t>(slot)] < protection.sinks) return 0;
    return is_protected(protection, positions, static_cast<size_t>(slot)) ? 1 : 2;
  };
  std::vector<int32_t> order(positions.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int of_a = category(a);
    const int of_b = category(b);
    if (of_a != of_b) return of_a < of_b;
    if (of_a == 0) return a < b;
    if (of_a == 1) return a > b;
    const float x = scores[static_cast<size_t>(a)];
    const float y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a > b;
  });
  return order;
}

class EvictionCurve : public Metric {
 public:
  explicit EvictionCurve(Params& params)
      : needs_(FutureImportance::needs(params)),
        group_(FutureImportance::group_option(params)),
        points_(params.get("points", 20, "steps of the grid of removed fractions")),
        per_head_(params.get("detail", "none", {"none", "head"}, "head: one curve a layer and KV head too") == "head") {
    if (points_ < 1) params.fail("points", "expected at least 1");
  }

  ObserverNeeds observer_needs() const override { return {.baseline = needs_}; }

  void begin_case(const CaseView& view) override {
    view_ = view;
    importance_.begin(view, group_);
    residents_.begin(view);
    curves_.assign(view.samples.size(), {});
    evicted_.assign(view.samples.size(), 0);
  }

  void attended(const LayerView& view, ConstRef) override {
    if (!view_.decode_time) residents_.append(view);
  }

  void evicting(const EvictionView& view) override {
    if (view_.decode_time) return;
    const LayerView& layer = view.layer;
    for (int s = 0; s < layer.sequences; ++s) {
      if (!view.sequences_due[static_cast<size_t>(s)]) continue;
      evicted_[static_cast<size_t>(s)] = 1;
      for (int head = 0; head < layer.kv_heads && !importance_.missing(); ++head) add_curve(view, s, head);
    }
    residents_.cut(view, to_host(layer.backend, view.keep, layer.rows() * view.pitch));
  }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) {
      const char* reason = why_not(s);
      if (reason) {
        rows.push_back({.sample = s, .metric = "eviction_curve", .skipped = reason});
      } else {
        report_sample(s, rows);
      }
    }
  }

 private:
  void add_curve(const EvictionView& view, int s, int head) {
    const int layer = view.layer.layer;
    const int row = s * view.layer.kv_heads + head;
    const auto importance = importance_.at(layer, row, view.tokens_seen[static_cast<size_t>(s)]);
    if (importance.empty()) return;
    const auto positions = residents_.row(layer, row);
    const auto scores =
        to_host(view.layer.backend, view.scores + row * view.pitch, static_cast<int64_t>(positions.size()));
    std::vector<double> in_order;
    for (const int32_t slot : policy_order(view.protection, positions, scores)) {
      in_order.push_back(importance[static_cast<size_t>(positions[static_cast<size_t>(slot)])]);
    }
    std::vector<double> sorted = in_order;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    if (sorted.front() <= 0) return;
    curves_[static_cast<size_t>(s)].push_back(
        {.layer = layer, .head = head, .policy = shares(in_order), .oracle = shares(sorted)});
  }

  // Kept share of the total at each point of the grid.
  std::vector<double> shares(std::span<const double> in_order) const {
    std::vector<double> sums(in_order.size() + 1, 0);
    std::partial_sum(in_order.begin(), in_order.end(), sums.begin() + 1);
    std::vector<double> curve;
    for (int i = 0; i <= points_; ++i) {
      const size_t kept = in_order.size() * static_cast<size_t>(points_ - i) / static_cast<size_t>(points_);
      curve.push_back(sums[kept] / sums.back());
    }
    return curve;
  }

  const char* why_not(int s) const {
    if (view_.decode_time) return "a curve needs one-shot compression";
    if (const char* reason = importance_.missing()) return reason;
    if (!evicted_[static_cast<size_t>(s)]) return "nothing is evicted";
    return curves_[static_cast<size_t>(s)].empty() ? "no query follows the event" : nullptr;
  }

  void report_sample(int s, std::vector<Measured>& rows) const {
    const auto& curves = curves_[static_cast<size_t>(s)];
    for (int i = 0; i <= points_; ++i) {
      const double x = static_cast<double>(i) / points_;
      double policy = 0;
      double oracle = 0;
      for (const Curve& curve : curves) {
        policy += curve.policy[static_cast<size_t>(i)];
        oracle += curve.oracle[static_cast<size_t>(i)];
        if (per_head_) add_head(s, curve, i, x, rows);
      }
      policy /= static_cast<double>(curves.size());
      oracle /= static_cast<double>(curves.size());
      rows.push_back({.sample = s, .x = x, .metric = "eviction_curve", .value = policy});
      // Equal sets summed in another order may differ by a rounding.
      rows.push_back({.sample = s, .x = x, .metric = "eviction_curve_oracle", .value = std::max(oracle, policy)});
    }
  }

  void add_head(int s, const Curve& curve, int point, double x, std::vector<Measured>& rows) const {
    const int number = view_.batch.source->layer_numbers[static_cast<size_t>(curve.layer)];
    const size_t i = static_cast<size_t>(point);
    rows.push_back({.sample = s,
                    .layer = number,
                    .head = curve.head,
                    .x = x,
                    .metric = "eviction_curve_head",
                    .value = curve.policy[i]});
    rows.push_back({.sample = s,
                    .layer = number,
                    .head = curve.head,
                    .x = x,
                    .metric = "eviction_curve_oracle_head",
                    .value = curve.oracle[i]});
  }

  BaselineNeeds needs_;
  FutureImportance::Group group_;
  int points_;
  bool per_head_;
  CaseView view_;
  FutureImportance importance_;
  Residents residents_;
  std::vector<std::vector<Curve>> curves_;  // [sequences], in order of layer and head
  std::vector<uint8_t> evicted_;
};

const RegisterMetric kEvictionCurve{
    {.name = "eviction_curve",
     .summary = "eviction_curve, eviction_curve_oracle over the removed fraction x: future "
                "importance kept, in [0, 1]; one-shot compression (002 Fig. 1)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<EvictionCurve>(params); }}};

}  // namespace

}  // namespace kv
