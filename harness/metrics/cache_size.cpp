// What a cache holds at the text's end, over the full cache's.
//   cache_size   Σ over layers and KV heads of the entries / (tokens · layers · heads), in [0, 1]: the "normalised KV
//                cache size" of 004, its x axis: entries after the last sweep, the window's among them
//   cache_bytes  the same entries by what they take: keys, values, positions, and what a policy keeps for each (expiry,
//                columns, bounds of its page) and for their sequence (the newest queries that a scorer judges by), over
//                the full cache's keys, values and positions; above cache_size where there is such
// Of neither are the bytes of gates, which are the same for any text: rows learned_bytes.

#include "harness/metrics/metric.h"

namespace kv {
namespace {

class CacheSize final : public Metric {
 public:
  ObserverNeeds observer_needs() const override {
    return {.takes_unseen = true, .takes_unread = true, .takes_capacity = true};
  }
  void begin_case(const CaseView& view) override { view_ = view; }

  void report(const ReplayResult& result, std::vector<Measured>& rows) override {
    const SourceInfo& source = *view_.batch.source;
    const int64_t heads = int64_t{source.layers} * source.kv_heads;
    const size_t plain = plain_entry_bytes(source.head_dim, view_.batch.backend->activation_type());
    for (size_t s = 0; s < view_.samples.size(); ++s) {
      const auto full = static_cast<double>(heads * std::ssize(view_.samples[s]->ids));
      const auto entries = static_cast<double>(result.sequences[s].end_entries);
      const double bytes = entries * result.entry_bytes + static_cast<double>(result.query_bytes);
      rows.push_back({.sample = static_cast<int>(s), .metric = "cache_size", .value = entries / full});
      rows.push_back({.sample = static_cast<int>(s),
                      .metric = "cache_bytes",
                      .value = bytes / (full * static_cast<double>(plain))});
    }
  }

  std::vector<std::string> numbers() const override { return {"cache_size", "cache_bytes"}; }

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
     .summary =
         "cache_size: entries at the end over the full cache's, in [0, 1] (004's normalised KV cache size); "
         "cache_bytes: the same by what they take, with columns, bounds and the newest queries that a policy judges by",
     .make = [](Params&) -> std::unique_ptr<Metric> { return std::make_unique<CacheSize>(); }}};

}  // namespace

}  // namespace kv
