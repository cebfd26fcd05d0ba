// How much future importance an event keeps (002 Sec. 4 and Fig. 1), adapted to decode-time
// pruning: at each event of a (layer, KV head)
//   recall = Σ_{kept candidates} I_j / Σ_{candidates} I_j,
// I from FutureImportance (full-cache attention of the queries still to come). Candidates are all residents, so
// policies that protect unequally many entries compare (streaming protects all it keeps); candidates=unprotected leaves
// out what the policy protects and so judges its scores alone. recall_oracle keeps, of the same candidates, as many as
// the policy did, but those of largest I: an upper bound; optimality_gap = recall_oracle − recall >= 0. Rows are means
// over events, then heads and layers; an event whose candidates carry no importance counts nowhere. eviction_loss =
// Σ_{candidates not kept} Ĩ_j over the heads of a layer, mean over events and layers; Ĩ: FutureImportance (normalise).
//
// terms=all adds the parts of that loss (002 Eq. 7), at the counts that the policy's allocation gave the heads:
//   eviction_loss_oracle       when every head keeps its most important candidates instead
//   eviction_loss_gap          eviction_loss − eviction_loss_oracle >= 0, = the difference of the next two
//   missed_importance          Σ Ĩ over misses
//   false_positive_importance  Σ Ĩ over false positives
//   hits, misses, false_positives  entries a head (KeptImportance). The last two are always equal in number: what tells
//                              them apart is their importance.
//   hit_share                  hits / (hits + misses); of misses and of false positives: the rest to 1.
// detail=layer adds a row a layer (<name>_layer), detail=head also one a layer and KV head (<name>_head; a head's loss
// is its own part of its layer's): of recall and eviction_loss, with terms=each of the parts and counts too.

#include <memory>
#include <string>

#include "harness/metrics/future_importance.h"
#include "harness/metrics/kept_importance.h"
#include "harness/metrics/metric.h"
#include "harness/metrics/recall_rows.h"
#include "harness/metrics/residents.h"

namespace kv {

namespace {

class Recall : public Metric {
 public:
  explicit Recall(Params& params)
      : importance_(FutureImportance::options(params)),
        all_residents_(params.get("candidates", "resident", {"resident", "unprotected"},
                                  "entries that recall is taken over: all, or those the policy may choose from") ==
                       "resident") {
    const std::string terms =
        params.get("terms", "loss", {"loss", "all", "each"},
                   "all: the parts of eviction_loss too, hits, misses and false positives; each: in every detail, too");
    all_terms_ = terms != "loss";
    each_term_ = terms == "each";
    const std::string detail = params.get("detail", "none", {"none", "layer", "head"},
                                          "layer: one row a layer too; head: and one a layer and KV head");
    per_layer_ = detail != "none";
    per_head_ = detail == "head";
  }

  ObserverNeeds observer_needs() const override {
    return {.baseline = importance_.needs(), .takes_unseen = true, .takes_unread = true};
  }

  void begin_case(const CaseView& view) override {
    view_ = view;
    importance_.begin(view, FutureImportance::events_of(view));
    residents_.begin(view.batch);
    const SourceInfo& source = *view.batch.source;
    sums_.assign(view.samples.size() * static_cast<size_t>(source.layers * source.kv_heads), {});
    layer_events_.assign(view.samples.size() * static_cast<size_t>(source.layers), 0);
    evicted_.assign(view.samples.size(), 0);
  }

  void attended(const LayerView& view, ConstRef) override { residents_.append(view); }

  void evicting(const EvictionView& view) override {
    const auto keep = to_host(view.layer.backend, view.keep.data, view.keep.elements());
    for (int s = 0; s < view.layer.sequences && !importance_.missing(); ++s) {
      if (view.sequences_due[static_cast<size_t>(s)]) add_event(view, s, keep);
    }
    residents_.cut(view, keep);
  }

  void sweeping(const LayerView& view, Slots<const uint8_t> keep) override { residents_.sweep(view, keep); }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) report_sample(s, rows);
  }

  std::vector<std::string> numbers() const override {
    return {"recall",
            "recall_oracle",
            "optimality_gap",
            "eviction_loss",
            "eviction_loss_oracle",
            "eviction_loss_gap",
            "missed_importance",
            "false_positive_importance",
            "hits",
            "misses",
            "false_positives",
            "hit_share"};
  }

  std::vector<Headline> headlines() const override {
    return {{.name = "recall",
             .title = "Share of the future importance that is kept",
             .metric = "recall",
             .better = "higher"}};
  }

 private:
  void add_event(const EvictionView& view, int s, std::span<const uint8_t> keep) {
    evicted_[static_cast<size_t>(s)] = 1;
    std::vector<KeptImportance> heads;
    double layer_total = 0;
    for (int head = 0; head < view.layer.kv_heads; ++head) {
      const int row = s * view.layer.kv_heads + head;
      heads.push_back(judge(view, s, row, keep.subspan(static_cast<size_t>(row * view.keep.pitch))));
      layer_total += heads.back().total;
    }
    if (layer_total <= 0) return;
    const int layer = view.layer.layer;
    ++layer_events_[static_cast<size_t>(s * view_.batch.source->layers + layer)];
    for (int head = 0; head < view.layer.kv_heads; ++head) {
      at(s, layer, head).add_event(heads[static_cast<size_t>(head)], importance_.divisor(layer_total));
    }
  }

  KeptImportance judge(const EvictionView& view, int s, int row, std::span<const uint8_t> keep) {
    const auto importance = importance_.at(view.layer.layer, row, view.tokens_seen[static_cast<size_t>(s)]);
    if (importance.empty()) return {};
    const auto positions = residents_.row(view.layer.layer, row);
    candidates_.clear();
    stays_.clear();
    for (size_t slot = 0; slot < positions.size(); ++slot) {
      if (!all_residents_ && is_protected(view.protection, positions, slot)) continue;
      candidates_.push_back(importance[static_cast<size_t>(positions[slot])]);
      stays_.push_back(keep[slot]);
    }
    return judge_kept(candidates_, stays_, scratch_);
  }

  RecallSums& at(int s, int layer, int head) {
    const SourceInfo& source = *view_.batch.source;
    return sums_[static_cast<size_t>((s * source.layers + layer) * source.kv_heads + head)];
  }

  void report_sample(int s, std::vector<Measured>& rows) {
    const char* reason = importance_.missing();
    if (!reason && !evicted_[static_cast<size_t>(s)]) reason = "nothing is evicted";
    RecallSums sample;
    int64_t layers = 0;
    for (int layer = 0; layer < view_.batch.source->layers && !reason; ++layer) {
      if (add_layer(s, layer, sample, rows)) ++layers;
    }
    if (!reason && sample.count == 0) reason = "no query follows the events";
    add_recall_rows({.place = {.sample = s}, .suffix = "", .all_terms = all_terms_, .layers = layers}, sample, reason,
                    rows);
  }

  // False for a layer without importance.
  bool add_layer(int s, int layer, RecallSums& sample, std::vector<Measured>& rows) {
    const SourceInfo& source = *view_.batch.source;
    const int64_t events = layer_events_[static_cast<size_t>(s * source.layers + layer)];
    if (events == 0) return false;
    const int number = source.layer_numbers[static_cast<size_t>(layer)];
    RecallSums mean;
    for (int head = 0; head < source.kv_heads; ++head) {
      RecallSums head_sums;
      for (RecallSums* to : {&head_sums, &mean, &sample}) to->add_means(at(s, layer, head), events);
      if (!per_head_) continue;
      add_recall_rows(
          {.place = {.sample = s, .layer = number, .head = head}, .suffix = "_head", .all_terms = each_term_},
          head_sums, nullptr, rows);
    }
    if (!per_layer_) return true;
    add_recall_rows({.place = {.sample = s, .layer = number}, .suffix = "_layer", .all_terms = each_term_}, mean,
                    nullptr, rows);
    return true;
  }

  FutureImportance importance_;
  bool all_residents_;
  bool all_terms_ = false;
  bool each_term_ = false;  // in the rows of layers and heads, too
  bool per_layer_ = false;
  bool per_head_ = false;
  CaseView view_;
  Residents residents_;
  std::vector<RecallSums> sums_;       // [sequences, layers, kv_heads]
  std::vector<int64_t> layer_events_;  // [sequences, layers], with importance in the layer
  std::vector<uint8_t> evicted_;       // [sequences]
  std::vector<float> candidates_, scratch_;
  std::vector<uint8_t> stays_;
};

const RegisterMetric kRecall{
    {.name = "recall",
     .summary = "recall, recall_oracle, optimality_gap, eviction_loss: future importance kept at the events, in [0, 1] "
                "(002 Fig. 1); terms=all: hits, misses and false positives (Eq. 7)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<Recall>(params); }}};

}  // namespace

}  // namespace kv
