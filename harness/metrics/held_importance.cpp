// How much of what the queries to come will attend to a cache still holds, whatever took the rest from it: events,
// admissions, or both (recall of 002 Sec. 4 judges an event by what was there before it, and knows of nothing else).
// At the end of the first block at or after every multiple of `every` tokens (no block is longer: policies compare at
// the same moments, whether events or prefill_chunk end their blocks), of a (layer, KV head)
//   held_importance = Σ_{resident} I_j / Σ_{seen} I_j,
// I from FutureImportance, over all tokens that the text had until then. held_importance_oracle holds as many entries
// of the head, but those of largest I. Rows are means over these moments, then heads and layers, in [0, 1]; a moment
// whose future carries no importance counts nowhere. The full cache has 1. What has expired counts as resident until it
// is swept, at the end of a block of 16 tokens or more.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "harness/metrics/future_importance.h"
#include "harness/metrics/kept_importance.h"
#include "harness/metrics/metric.h"
#include "harness/metrics/residents.h"

namespace kv {
namespace {

struct Shares {
  double held = 0, best = 0;
  int64_t moments = 0;
};

class HeldImportance final : public Metric {
 public:
  explicit HeldImportance(Params& params)
      : importance_(FutureImportance::options(params)),
        every_(params.get("every", 256, "tokens between the moments at which a cache is looked at")) {
    if (every_ < 1) params.fail("every", "expected at least 1");
  }

  ObserverNeeds observer_needs() const override {
    return {.baseline = importance_.needs(), .takes_unseen = true, .takes_unread = true};
  }

  void begin_case(const CaseView& view) override {
    view_ = view;
    moments_ = FutureImportance::ends_of_blocks(view, every_);
    importance_.begin(view, moments_);
    reason_ = importance_.missing() ? importance_.missing() : too_long(view);
    residents_.begin(view.batch);
    shares_.assign(view.samples.size() * heads(), {});
  }

  void attended(const LayerView& view, ConstRef) override { residents_.append(view); }
  void evicting(const EvictionView& view) override {
    residents_.cut(view, to_host(view.layer.backend, view.keep.data, view.keep.elements()));
  }
  void sweeping(const LayerView& view, Slots<const uint8_t> keep) override { residents_.sweep(view, keep); }

  void block_done(const Block& block, const TokenLosses&) override {
    if (!reason_.empty()) return;
    for (const Segment& segment : block.segments) {
      const int32_t seen = segment.first_position + segment.count;
      const std::vector<int32_t>& moments = moments_[static_cast<size_t>(segment.sequence)];
      if (segment.count > 0 && std::binary_search(moments.begin(), moments.end(), seen)) look(segment.sequence, seen);
    }
  }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (size_t s = 0; s < view_.samples.size(); ++s) {
      double held = 0, best = 0;
      int64_t counted = 0;
      for (size_t head = 0; head < heads(); ++head) {
        const Shares& of_head = shares_[s * heads() + head];
        if (of_head.moments == 0) continue;
        held += of_head.held / static_cast<double>(of_head.moments);
        best += of_head.best / static_cast<double>(of_head.moments);
        ++counted;
      }
      const auto add = [&](const char* metric, double sum) {
        Measured& row = rows.emplace_back(Measured{.sample = static_cast<int>(s), .metric = metric});
        if (counted > 0) {
          row.value = sum / static_cast<double>(counted);
        } else {
          row.skipped = reason_.empty() ? "no moment has a future" : reason_;
        }
      };
      add("held_importance", held);
      add("held_importance_oracle", best);
    }
  }

  std::vector<std::string> numbers() const override { return {"held_importance", "held_importance_oracle"}; }

  std::vector<Headline> headlines() const override {
    return {{.name = "held-importance",
             .title = "Share of the future importance that the cache holds",
             .metric = "held_importance",
             .better = "higher"}};
  }

 private:
  std::string too_long(const CaseView& view) const {
    int32_t longest = 0;
    for (const Step& step : *view.schedule) {
      longest = std::max(longest, *std::max_element(step.counts.begin(), step.counts.end()));
    }
    if (longest <= every_) return "";
    return fmt::format("a block has {} tokens, more than the {} between looks (prefill_chunk)", longest, every_);
  }

  size_t heads() const {
    return static_cast<size_t>(view_.batch.source->layers) * static_cast<size_t>(view_.batch.source->kv_heads);
  }

  void look(int32_t sequence, int32_t seen) {
    const int kv_heads = view_.batch.source->kv_heads;
    for (int layer = 0; layer < view_.batch.source->layers; ++layer) {
      for (int head = 0; head < kv_heads; ++head) {
        const int row = sequence * kv_heads + head;
        const auto importance = importance_.at(layer, row, seen);
        if (importance.empty()) continue;
        is_resident_.assign(importance.size(), 0);
        for (const int32_t position : residents_.row(layer, row)) is_resident_[static_cast<size_t>(position)] = 1;
        const KeptImportance kept = judge_kept(importance, is_resident_, scratch_);
        if (kept.total <= 0) continue;
        Shares& shares =
            shares_[static_cast<size_t>(sequence) * heads() + static_cast<size_t>(layer * kv_heads + head)];
        shares.held += kept.kept / kept.total;
        shares.best += kept.best / kept.total;
        ++shares.moments;
      }
    }
  }

  FutureImportance importance_;
  int every_;
  CaseView view_;
  std::string reason_;  // why nothing is looked at; empty where something is
  FutureImportance::Moments moments_;
  Residents residents_;
  std::vector<Shares> shares_;  // [samples, layers, kv_heads]
  std::vector<uint8_t> is_resident_;
  std::vector<float> scratch_;
};

const RegisterMetric kHeldImportance{
    {.name = "held_importance",
     .summary =
         "held_importance: future importance that the cache holds, of all tokens seen, whatever took the others, "
         "in [0, 1]; held_importance_oracle: as many entries of the most",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<HeldImportance>(params); }}};

}  // namespace
}  // namespace kv
