// admission_rate: the share of a text's tokens that an admission lets outlive its window, whatever is evicted later.
//   mean over tokens, KV heads and layers; detail=head adds admission_rate_head, a row a layer and KV head.
// Without an admission everything is let in: 1.

#include "harness/metrics/metric.h"
#include "kernels/expiry.h"
#include "sim/cache/to_host.h"

namespace kv {
namespace {

class AdmissionRate final : public Metric {
 public:
  explicit AdmissionRate(Params& params)
      : per_head_(params.get("detail", "none", {"none", "head"}, "head: one row a layer and KV head, too") == "head") {}

  ObserverNeeds observer_needs() const override {
    return {.takes_unseen = true, .takes_unread = true, .takes_capacity = true};
  }

  void begin_case(const CaseView& view) override {
    view_ = view;
    const SourceInfo& source = *view.batch.source;
    admitted_.assign(view.samples.size() * static_cast<size_t>(source.layers * source.kv_heads), 0);
  }

  void attended(const LayerView& view, ConstRef) override {
    int64_t tokens = 0;
    for (const Segment& segment : view.segments) tokens += segment.count;
    std::vector<int32_t> expires(static_cast<size_t>(tokens * view.kv_heads), kNeverExpires);
    if (view.expires) view.backend.download(expires.data(), view.expires, expires.size() * sizeof(int32_t));
    for (const Segment& segment : view.segments) {
      for (int64_t i = segment.first_token * view.kv_heads; i < (segment.first_token + segment.count) * view.kv_heads;
           ++i) {
        const int head = static_cast<int>(i % view.kv_heads);
        admitted(segment.sequence, view.layer, head) += expires[static_cast<size_t>(i)] == kNeverExpires ? 1 : 0;
      }
    }
  }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    const SourceInfo& source = *view_.batch.source;
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) {
      const auto tokens = static_cast<double>(view_.samples[static_cast<size_t>(s)]->ids.size());
      double all = 0;
      for (int layer = 0; layer < source.layers; ++layer) {
        for (int head = 0; head < source.kv_heads; ++head) {
          const double rate = static_cast<double>(admitted(s, layer, head)) / tokens;
          all += rate;
          if (!per_head_) continue;
          rows.push_back({.sample = s,
                          .layer = source.layer_numbers[static_cast<size_t>(layer)],
                          .head = head,
                          .metric = "admission_rate_head",
                          .value = rate});
        }
      }
      rows.push_back({.sample = s, .metric = "admission_rate", .value = all / (source.layers * source.kv_heads)});
    }
  }

  std::vector<std::string> numbers() const override { return {"admission_rate"}; }

  std::vector<Headline> headlines() const override {
    return {{.name = "admission-rate",
             .title = "Share of the tokens that outlive the window",
             .metric = "admission_rate",
             .better = "lower"}};
  }

 private:
  int64_t& admitted(int sequence, int layer, int head) {
    const SourceInfo& source = *view_.batch.source;
    return admitted_[static_cast<size_t>((sequence * source.layers + layer) * source.kv_heads + head)];
  }

  bool per_head_;
  CaseView view_;
  std::vector<int64_t> admitted_;  // [sequences, layers, kv_heads] tokens
};

const RegisterMetric registered{
    {.name = "admission_rate",
     .summary = "admission_rate: the share of tokens that an admission lets outlive its window, in [0, 1] (004)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<AdmissionRate>(params); }}};

}  // namespace
}  // namespace kv
