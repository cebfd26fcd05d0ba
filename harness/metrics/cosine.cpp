// Cosine between a head's output under the policy and under the full cache (001 Table 7, end to end: hidden states
// drift). Per query head, over the tokens from the first event on; over all tokens where no event happens. `cosine` is
// the mean over tokens, heads and layers; detail=layer adds `cosine_layer`, detail=head `cosine_head` too, whose head
// counts query heads. A zero vector counts as cosine 0.

#include <algorithm>
#include <memory>
#include <string>

#include "harness/metrics/token_record.h"
#include "kernels/check.h"
#include "kernels/row_cosine.h"
#include "sim/cache/to_host.h"

namespace kv {

namespace {

class Cosine : public Metric {
 public:
  explicit Cosine(Params& params)
      : detail_(params.get("detail", "none", {"none", "layer", "head"},
                           "layer: one row a layer too; head: one row a query head as well")) {}

  ObserverNeeds observer_needs() const override {
    return {.baseline = {.outputs = true}, .takes_unseen = true, .takes_unread = true};
  }

  void begin_case(const CaseView& view) override {
    KV_CHECK(view.baseline && view.baseline->has.outputs);
    view_ = view;
    const SourceInfo& source = *view.batch.source;
    sums_.assign(view.samples.size() * static_cast<size_t>(source.layers * source.q_heads), 0);
    tokens_.assign(view.samples.size(), 0);
  }

  void attended(const LayerView& view, ConstRef head_outputs) override {
    int64_t tokens = 0;
    for (const Segment& segment : view.segments) tokens += counted(segment);
    if (tokens == 0) return;
    cosines_.reserve(view.backend, DType::kF32, tokens * view.q_heads);
    int64_t done = 0;
    for (const Segment& segment : view.segments) {
      if (counted(segment) == 0) continue;
      compare(view, segment, head_outputs, cosines_.at(done * view.q_heads).as<float>());
      done += counted(segment);
    }
    add(view, to_host(view.backend, std::as_const(cosines_).ref().as<float>(), tokens * view.q_heads));
  }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) report_sample(s, rows);
  }

  std::vector<std::string> numbers() const override { return {"cosine"}; }

  std::vector<Headline> headlines() const override {
    return {{.name = "cosine",
             .title = "Cosine of head outputs under the policy and the full cache",
             .metric = "cosine",
             .better = "higher"}};
  }

 private:
  int32_t first(int sequence) const { return std::max(0, view_.first_event[static_cast<size_t>(sequence)]); }

  // Tokens of a block that count: those from `first` on, its last ones.
  int32_t counted(const Segment& segment) const {
    return std::clamp(segment.first_position + segment.count - first(segment.sequence), 0, segment.count);
  }

  double& sum(int sequence, int layer, int head) {
    const SourceInfo& source = *view_.batch.source;
    return sums_[static_cast<size_t>((sequence * source.layers + layer) * source.q_heads + head)];
  }

  void compare(const LayerView& view, const Segment& segment, ConstRef head_outputs, float* cosines) {
    const int64_t tokens = counted(segment), skipped = segment.count - tokens;
    const int64_t token_elements = static_cast<int64_t>(view.q_heads) * view.head_dim;
    const int64_t full_token = segment.sequence * view_.baseline->max_tokens + segment.first_position + skipped;
    const size_t offset =
        static_cast<size_t>((segment.first_token + skipped) * token_elements) * bytes_of(head_outputs.dtype);
    view.backend.row_cosine(
        {.a = {static_cast<const char*>(head_outputs.data) + offset, head_outputs.dtype},
         .b = view_.baseline->layers[static_cast<size_t>(view.layer)].outputs.at(full_token * token_elements),
         .cosine = cosines,
         .rows = tokens * view.q_heads,
         .width = view.head_dim});
  }

  // cosines: of the tokens that count, segment after segment, [tokens, q_heads].
  void add(const LayerView& view, const std::vector<float>& cosines) {
    size_t next = 0;
    for (const Segment& segment : view.segments) {
      const int32_t tokens = counted(segment);
      for (int32_t token = 0; token < tokens; ++token) {
        for (int head = 0; head < view.q_heads; ++head) sum(segment.sequence, view.layer, head) += cosines[next++];
      }
      if (view.layer == 0) tokens_[static_cast<size_t>(segment.sequence)] += tokens;
    }
  }

  void report_sample(int s, std::vector<Measured>& rows) {
    const double tokens = static_cast<double>(tokens_[static_cast<size_t>(s)]);
    if (tokens == 0) {
      rows.push_back({.sample = s, .metric = "cosine", .skipped = "no token follows the first event"});
      return;
    }
    const SourceInfo& source = *view_.batch.source;
    double all = 0;
    for (int layer = 0; layer < source.layers; ++layer) {
      const int number = source.layer_numbers[static_cast<size_t>(layer)];
      double of_layer = 0;
      for (int head = 0; head < source.q_heads; ++head) {
        const double mean = sum(s, layer, head) / tokens;
        of_layer += mean;
        if (detail_ != "head") continue;
        rows.push_back({.sample = s, .layer = number, .head = head, .metric = "cosine_head", .value = mean});
      }
      of_layer /= source.q_heads;
      if (detail_ != "none") {
        rows.push_back({.sample = s, .layer = number, .metric = "cosine_layer", .value = of_layer});
      }
      all += of_layer;
    }
    rows.push_back({.sample = s, .metric = "cosine", .value = all / source.layers});
  }

  std::string detail_;
  CaseView view_;
  std::vector<double> sums_;  // [sequences, layers, q_heads]
  std::vector<int64_t> tokens_;
  Tensor cosines_;  // of the block's tokens that count, [tokens, q_heads]
};

const RegisterMetric kCosine{
    {.name = "cosine",
     .summary = "cosine: of head outputs under the policy and the full cache, after the first event, end "
                "to end, in [-1, 1] (001 Table 7)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<Cosine>(params); }}};

}  // namespace

}  // namespace kv
