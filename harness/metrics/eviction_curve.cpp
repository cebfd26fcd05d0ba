// The whole trade-off from one one-shot replay (002 Fig. 1): for every removed fraction σ on a grid, the share of
// future importance that stays when each (layer, KV head) keeps the first b = int((1 − σ) · n) of its n entries
//   eviction_curve         in the policy's order: protected entries first (sinks, then recent ones), then by score,
//                          equal scores newer first (a scorer's own second key is not known here);
//   eviction_curve_oracle  in order of importance. The vertical distance is the optimality gap, >= 0.
// x = σ = i / points for i in 0 … points. Importance and its future: FutureImportance. Means over layers and heads.
// loss=yes adds what leaves (002 Eq. 6), L(b) = Σ Ĩ over the other n − b entries summed over the heads of a layer, in
// either order: eviction_loss_curve and eviction_loss_curve_oracle, means over layers; each head loses the same σ. And
// eviction_loss_curve_hull, of the lower convex hull of each head's L(b) in the policy's order (002 Eq. 9,
// pool_adjacent_violators): the relaxed loss that LU-KV's greedy split minimises, between the other two.
// detail=layer adds a curve a layer (<name>_layer), detail=head also one a layer and KV head (<name>_head; its loss is
// its own part of its layer's). Heads without importance count nowhere.

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string>

#include "harness/metrics/future_importance.h"
#include "harness/metrics/importance_order.h"
#include "harness/metrics/metric.h"
#include "harness/metrics/residents.h"
#include "sim/budget/hull.h"

namespace kv {

namespace {

struct Curve {
  int layer = 0;
  int head = 0;
  std::vector<double> policy;  // [points + 1]
  std::vector<double> oracle;
  std::vector<double> hull;  // empty without losses
  double total = 0;          // importance of the head
};

// One point of a curve, summed over heads.
struct Point {
  int heads = 0;
  double policy = 0;
  double oracle = 0;
  double loss = 0;
  double oracle_loss = 0;
  double hull_loss = 0;

  void add(const Point& other) {
    heads += other.heads;
    policy += other.policy;
    oracle += other.oracle;
    loss += other.loss;
    oracle_loss += other.oracle_loss;
    hull_loss += other.hull_loss;
  }
};

class EvictionCurve : public Metric {
 public:
  explicit EvictionCurve(Params& params)
      : importance_(FutureImportance::options(params)),
        points_(params.get("points", 20, "steps of the grid of removed fractions")),
        with_loss_(params.get("loss", "no", {"no", "yes"}, "yes: the curves of what leaves too") == "yes") {
    const std::string detail = params.get("detail", "none", {"none", "layer", "head"},
                                          "layer: one curve a layer too; head: and one a layer and KV head");
    per_layer_ = detail != "none";
    per_head_ = detail == "head";
    if (points_ < 1) params.fail("points", "expected at least 1");
  }

  ObserverNeeds observer_needs() const override { return {.baseline = importance_.needs()}; }

  void begin_case(const CaseView& view) override {
    view_ = view;
    importance_.begin(view, FutureImportance::events_of(view));
    residents_.begin(view.batch);
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
    residents_.cut(view, to_host(layer.backend, view.keep.data, view.keep.elements()));
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
    const auto in_order = importance_in_order(view, row, residents_.row(layer, row), importance);
    std::vector<double> sorted(in_order.begin(), in_order.end());
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    if (sorted.front() <= 0) return;
    curves_[static_cast<size_t>(s)].push_back(
        {.layer = layer,
         .head = head,
         .policy = shares({in_order.begin(), in_order.end()}),
         .oracle = shares(sorted),
         .hull = with_loss_ ? shares(pool_adjacent_violators(in_order)) : std::vector<double>(),
         .total = std::accumulate(sorted.begin(), sorted.end(), 0.0)});
  }

  // Kept share of the total at each point of the grid.
  std::vector<double> shares(const std::vector<double>& in_order) const {
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
    const std::span<const Curve> curves = curves_[static_cast<size_t>(s)];
    for (int i = 0; i <= points_; ++i) {
      const Measured at{.sample = s, .x = static_cast<double>(i) / points_, .metric = {}};
      Point sample;
      int layers = 0;
      for (size_t begin = 0, end = 0; begin < curves.size(); begin = end) {
        while (end < curves.size() && curves[end].layer == curves[begin].layer) ++end;
        add_layer(curves.subspan(begin, end - begin), static_cast<size_t>(i), at, sample, rows);
        ++layers;
      }
      add_rows(at, "", sample, layers, rows);
    }
  }

  void add_layer(std::span<const Curve> curves, size_t i, Measured at, Point& sample,
                 std::vector<Measured>& rows) const {
    at.layer = view_.batch.source->layer_numbers[static_cast<size_t>(curves.front().layer)];
    const double total = std::accumulate(curves.begin(), curves.end(), 0.0,
                                         [](double sum, const Curve& curve) { return sum + curve.total; });
    Point layer;
    for (const Curve& curve : curves) {
      const double weight = curve.total / importance_.divisor(total);
      const Point point{.heads = 1,
                        .policy = curve.policy[i],
                        .oracle = curve.oracle[i],
                        .loss = (1 - curve.policy[i]) * weight,
                        .oracle_loss = (1 - curve.oracle[i]) * weight,
                        .hull_loss = with_loss_ ? (1 - curve.hull[i]) * weight : 0};
      layer.add(point);
      sample.add(point);
      if (!per_head_) continue;
      Measured head = at;
      head.head = curve.head;
      add_rows(head, "_head", point, 1, rows);
    }
    if (per_layer_) add_rows(at, "_layer", layer, 1, rows);
  }

  void add_rows(const Measured& at, const std::string& suffix, const Point& point, int layers,
                std::vector<Measured>& rows) const {
    const auto add = [&](const char* name, double value) {
      rows.push_back(at);
      rows.back().metric = name + suffix;
      rows.back().value = value;
    };
    // Equal sets summed in another order may differ by a rounding.
    const double policy = point.policy / point.heads;
    add("eviction_curve", policy);
    add("eviction_curve_oracle", std::max(point.oracle / point.heads, policy));
    if (!with_loss_) return;
    add("eviction_loss_curve", point.loss / layers);
    const double oracle_loss = std::min(point.oracle_loss, point.loss);
    add("eviction_loss_curve_oracle", oracle_loss / layers);
    add("eviction_loss_curve_hull", std::clamp(point.hull_loss, oracle_loss, point.loss) / layers);
  }

  FutureImportance importance_;
  int points_;
  bool with_loss_;
  bool per_layer_ = false;
  bool per_head_ = false;
  CaseView view_;
  Residents residents_;
  std::vector<std::vector<Curve>> curves_;  // [sequences], in order of layer and head
  std::vector<uint8_t> evicted_;
};

const RegisterMetric kEvictionCurve{
    {.name = "eviction_curve",
     .summary = "eviction_curve, eviction_curve_oracle over the removed fraction x: future "
                "importance kept, in [0, 1]; loss=yes: what leaves; one-shot compression (002 Fig. 1)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<EvictionCurve>(params); }}};

}  // namespace

}  // namespace kv
