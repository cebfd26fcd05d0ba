// How much of what one policy evicts another would evict, too: under protocol decode with `cut_by: golden`, Golden
// Eviction cuts and the case's own policy looks on, so all policies are asked of the same caches (001, supervised
// stage: overlap with the golden evictions).
//   evicted_overlap        of a sample: mean over events, layers and KV heads (sim/replay/evicted_overlap.h)
//   evicted_overlap_layer  the same of one layer
// 1 is the oracle's choice; a random choice has the evicted share of what is not protected, L / B under golden.

#include <memory>

#include "harness/metrics/metric.h"
#include "sim/replay/evicted_overlap.h"

namespace kv {

namespace {

struct Mean {
  double sum = 0;
  int64_t count = 0;

  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return sum / static_cast<double>(count); }
};

class EvictedOverlapMetric final : public Metric {
 public:
  explicit EvictedOverlapMetric(Params&) {}

  void begin_case(const CaseView& view) override {
    layer_numbers_ = view.batch.source->layer_numbers;
    means_.assign(view.samples.size(), std::vector<Mean>(layer_numbers_.size()));
  }

  void evicting(const EvictionView& view) override {
    if (view.onlookers.empty()) return;
    const auto shares = overlap_.of(view, view.onlookers.front());
    for (size_t row = 0; row < shares.size(); ++row) {
      if (!shares[row]) continue;
      means_[row / static_cast<size_t>(view.layer.kv_heads)][static_cast<size_t>(view.layer.layer)].add(*shares[row]);
    }
  }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (size_t s = 0; s < means_.size(); ++s) {
      Mean all;
      for (size_t layer = 0; layer < layer_numbers_.size(); ++layer) {
        const Mean& mean = means_[s][layer];
        all.sum += mean.sum;
        all.count += mean.count;
        if (mean.count > 0) {
          rows.push_back({.sample = static_cast<int>(s),
                          .layer = layer_numbers_[layer],
                          .metric = "evicted_overlap_layer",
                          .value = mean.value()});
        }
      }
      Measured& row = rows.emplace_back(Measured{.sample = static_cast<int>(s), .metric = "evicted_overlap"});
      if (all.count > 0) {
        row.value = all.value();
      } else {
        row.skipped = "nobody looked on while something was evicted: expected the axis cut_by and a text with an event";
      }
    }
  }

  std::vector<std::string> numbers() const override { return {"evicted_overlap"}; }

  std::vector<Headline> headlines() const override {
    return {{.name = "evicted-overlap",
             .title = "Of what golden evicts, the share that the policy would evict, too",
             .metric = "evicted_overlap",
             .better = "higher"}};
  }

 private:
  EvictedOverlap overlap_;
  std::vector<int> layer_numbers_;
  std::vector<std::vector<Mean>> means_;  // [sequences][layers]
};

const RegisterMetric registered{{
    .name = "evicted_overlap",
    .summary = "with cut_by: golden, of what golden evicts the share that the policy would evict, too (001), 0 to 1",
    .make = [](Params& params) { return std::make_unique<EvictedOverlapMetric>(params); },
}};

}  // namespace

}  // namespace kv
