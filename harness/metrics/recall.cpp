// How much future importance an event keeps (002 Sec. 4 and Fig. 1; policies.md 2.7 a, 3.3), adapted to decode-time
// pruning: at each event of a (layer, KV head)
//   recall = Σ_{kept candidates} I_j / Σ_{candidates} I_j,
// I from FutureImportance (full-cache attention of the queries still to come). Candidates are all residents, so
// policies that protect unequally many entries compare (streaming protects all it keeps); candidates=unprotected leaves
// out what the policy protects and so judges its scores alone. recall_oracle keeps, of the same candidates, as many as
// the policy did, but those of largest I: an upper bound; optimality_gap = recall_oracle − recall >= 0. Rows are means
// over events, then heads and layers; an event whose candidates carry no importance counts nowhere. eviction_loss =
// Σ_{candidates not kept} Ĩ_j over the heads of a layer, mean over events and layers; normalise=layer: Ĩ = I / Σ over
// all candidates of all KV heads of that layer at that event (each layer's total is 1); normalise=none: Ĩ = I.
// detail=head adds recall_head and eviction_loss_head (a head's own part of its layer's loss).

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>

#include "harness/metrics/future_importance.h"
#include "harness/metrics/residents.h"

namespace kv {

namespace {

struct Share {
  double total = 0;
  double kept = 0;
  double best = 0;  // the largest sum that as many entries can have
};

struct HeadSums {
  int64_t events = 0;  // with importance in this head
  double recall = 0;
  double oracle = 0;
  double loss = 0;
};

class Recall : public Metric {
 public:
  explicit Recall(Params& params)
      : needs_(FutureImportance::needs(params)),
        group_(FutureImportance::group_option(params)),
        all_residents_(params.get("candidates", "resident", {"resident", "unprotected"},
                                  "entries that recall is taken over: all, or those the policy may choose from") ==
                       "resident"),
        normalise_(params.get("normalise", "layer", {"layer", "none"}, "importance in eviction_loss") == "layer"),
        per_head_(params.get("detail", "none", {"none", "head"}, "head: one row a layer and KV head too") == "head") {}

  ObserverNeeds observer_needs() const override { return {.baseline = needs_}; }

  void begin_case(const CaseView& view) override {
    view_ = view;
    importance_.begin(view, group_);
    residents_.begin(view);
    const SourceInfo& source = *view.batch.source;
    sums_.assign(view.samples.size() * static_cast<size_t>(source.layers * source.kv_heads), {});
    layer_events_.assign(view.samples.size() * static_cast<size_t>(source.layers), 0);
    evicted_.assign(view.samples.size(), 0);
  }

  void attended(const LayerView& view, ConstRef) override { residents_.append(view); }

  void evicting(const EvictionView& view) override {
    const auto keep = to_host(view.layer.backend, view.keep, view.layer.rows() * view.pitch);
    for (int s = 0; s < view.layer.sequences && !importance_.missing(); ++s) {
      if (view.sequences_due[static_cast<size_t>(s)]) add_event(view, s, keep);
    }
    residents_.cut(view, keep);
  }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) report_sample(s, rows);
  }

 private:
  void add_event(const EvictionView& view, int s, std::span<const uint8_t> keep) {
    evicted_[static_cast<size_t>(s)] = 1;
    std::vector<Share> shares;
    double layer_total = 0;
    for (int head = 0; head < view.layer.kv_heads; ++head) {
      const int row = s * view.layer.kv_heads + head;
      shares.push_back(share_of(view, s, row, keep.subspan(static_cast<size_t>(row * view.pitch))));
      layer_total += shares.back().total;
    }
    if (layer_total <= 0) return;
    const int layer = view.layer.layer;
    ++layer_events_[static_cast<size_t>(s * view_.batch.source->layers + layer)];
    for (int head = 0; head < view.layer.kv_heads; ++head) {
      const Share& share = shares[static_cast<size_t>(head)];
      HeadSums& sums = at(s, layer, head);
      sums.loss += (share.total - share.kept) / (normalise_ ? layer_total : 1.0);
      if (share.total <= 0) continue;
      ++sums.events;
      sums.recall += share.kept / share.total;
      sums.oracle += share.best / share.total;
    }
  }

  Share share_of(const EvictionView& view, int s, int row, std::span<const uint8_t> keep) {
    const auto importance = importance_.at(view.layer.layer, row, view.tokens_seen[static_cast<size_t>(s)]);
    if (importance.empty()) return {};
    const auto positions = residents_.row(view.layer.layer, row);
    Share share;
    candidates_.clear();
    size_t kept = 0;
    for (size_t slot = 0; slot < positions.size(); ++slot) {
      if (!all_residents_ && is_protected(view.protection, positions, slot)) continue;
      const float own = importance[static_cast<size_t>(positions[slot])];
      candidates_.push_back(own);
      share.total += own;
      if (!keep[slot]) continue;
      share.kept += own;
      ++kept;
    }
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(kept), candidates_.end(),
                     std::greater<>());
    share.best = std::accumulate(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(kept), 0.0);
    // The same set summed in another order may fall short of `kept` by a rounding.
    share.best = std::max(share.best, share.kept);
    return share;
  }

  HeadSums& at(int s, int layer, int head) {
    const SourceInfo& source = *view_.batch.source;
    return sums_[static_cast<size_t>((s * source.layers + layer) * source.kv_heads + head)];
  }

  void report_sample(int s, std::vector<Measured>& rows) {
    const char* reason = importance_.missing();
    if (!reason && !evicted_[static_cast<size_t>(s)]) reason = "nothing is evicted";
    HeadSums mean;
    int64_t heads = 0;
    int64_t layers = 0;
    if (!reason) collect(s, mean, heads, layers, rows);
    if (!reason && heads == 0) reason = "no query follows the events";
    if (reason) {
      for (const char* name : {"recall", "recall_oracle", "optimality_gap", "eviction_loss"}) {
        rows.push_back({.sample = s, .metric = name, .skipped = reason});
      }
      return;
    }
    const double recall = mean.recall / static_cast<double>(heads);
    const double oracle = mean.oracle / static_cast<double>(heads);
    rows.push_back({.sample = s, .metric = "recall", .value = recall});
    rows.push_back({.sample = s, .metric = "recall_oracle", .value = oracle});
    rows.push_back({.sample = s, .metric = "optimality_gap", .value = oracle - recall});
    rows.push_back({.sample = s, .metric = "eviction_loss", .value = mean.loss / static_cast<double>(layers)});
  }

  void collect(int s, HeadSums& mean, int64_t& heads, int64_t& layers, std::vector<Measured>& rows) {
    const SourceInfo& source = *view_.batch.source;
    for (int layer = 0; layer < source.layers; ++layer) {
      const int64_t events = layer_events_[static_cast<size_t>(s * source.layers + layer)];
      if (events == 0) continue;
      ++layers;
      const int number = source.layer_numbers[static_cast<size_t>(layer)];
      for (int head = 0; head < source.kv_heads; ++head) {
        const HeadSums& sums = at(s, layer, head);
        const double loss = sums.loss / static_cast<double>(events);
        mean.loss += loss;
        if (per_head_) {
          rows.push_back({.sample = s, .layer = number, .head = head, .metric = "eviction_loss_head", .value = loss});
        }
        if (sums.events == 0) continue;
        ++heads;
        const double recall = sums.recall / static_cast<double>(sums.events);
        mean.recall += recall;
        mean.oracle += sums.oracle / static_cast<double>(sums.events);
        if (!per_head_) continue;
        rows.push_back({.sample = s, .layer = number, .head = head, .metric = "recall_head", .value = recall});
      }
    }
  }

  BaselineNeeds needs_;
  FutureImportance::Group group_;
  bool all_residents_;
  bool normalise_;
  bool per_head_;
  CaseView view_;
  FutureImportance importance_;
  Residents residents_;
  std::vector<HeadSums> sums_;         // [sequences, layers, kv_heads]
  std::vector<int64_t> layer_events_;  // [sequences, layers], with importance in the layer
  std::vector<uint8_t> evicted_;       // [sequences]
  std::vector<float> candidates_;
};

const RegisterMetric kRecall{
    {.name = "recall",
     .summary = "recall, recall_oracle, optimality_gap, eviction_loss: future importance kept at the events, in [0, 1] "
                "(002 Fig. 1)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<Recall>(params); }}};

}  // namespace

}  // namespace kv
