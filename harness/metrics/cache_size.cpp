// cache_size: what a cache holds at the text's end, over the full cache's.
//   Σ over layers and KV heads of the entries / (tokens · layers · heads), in [0, 1].
// The "normalised KV cache size" of 004, its x axis: entries after the last sweep, the window's among them. Bytes of
// gates, bounds and other columns are not in it; rows kv_bytes, column_bytes (with bounds) and learned_bytes have them.

#include "harness/metrics/metric.h"

namespace kv {
namespace {

class CacheSize final : public Metric {
 public:
  ObserverNeeds observer_needs() const override { return {.takes_unseen = true, .takes_capacity = true}; }
  void begin_case(const CaseView& view) override { view_ = view; }

  void report(const ReplayResult& result, std::vector<Measured>& rows) override {
    const int64_t heads = int64_t{view_.batch.source->layers} * view_.batch.source->kv_heads;
    for (size_t s = 0; s < view_.samples.size(); ++s) {
      const auto full = static_cast<double>(heads * std::ssize(view_.samples[s]->ids));
      rows.push_back({.sample = static_cast<int>(s),
                      .metric = "cache_size",
                      .value = static_cast<double>(result.sequences[s].end_entries) / full});
    }
  }

  std::vector<std::string> numbers() const override { return {"cache_size"}; }

  std::vector<Headline> headlines() const override {
    return {{.name = "cache-size",
             .title = "Entries at the end, over the full cache's",
             .metric = "cache_size",
             .better = "lower"}};
  }

 private:
  CaseView view_;
};

const RegisterMetric kCacheSize{
    {.name = "cache_size",
     .summary = "cache_size: entries at the end over the full cache's, in [0, 1] (004's normalised KV cache size)",
     .make = [](Params&) -> std::unique_ptr<Metric> { return std::make_unique<CacheSize>(); }}};

}  // namespace

}  // namespace kv
