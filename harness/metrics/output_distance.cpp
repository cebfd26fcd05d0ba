// output_distance: how far the heads' outputs are from those of the full cache, ‖o − ō‖ / ‖ō‖, mean over tokens, query
// heads and layers. End to end where a model runs: hidden states drift. Over a trace, which is not fed back, it is what
// reading fewer entries does to attention alone. Over all tokens, those that saw everything, too; detail=layer adds a
// row a layer. A zero vector's distance is 0 from another one, else 1.

#include <cmath>

#include "harness/metrics/metric.h"
#include "kernels/check.h"
#include "kernels/row_distance.h"
#include "sim/cache/to_host.h"

namespace kv {
namespace {

class OutputDistance final : public Metric {
 public:
  explicit OutputDistance(Params& params)
      : per_layer_(params.get("detail", "none", {"none", "layer"}, "layer: one row a layer, too") == "layer") {}

  ObserverNeeds observer_needs() const override {
    return {.baseline = {.outputs = true}, .takes_unseen = true, .takes_unread = true, .takes_capacity = true};
  }

  void begin_case(const CaseView& view) override {
    KV_CHECK(view.baseline && view.baseline->has.outputs);
    view_ = view;
    sums_.assign(view.samples.size() * static_cast<size_t>(view.batch.source->layers), 0);
    values_.assign(view.samples.size(), 0);
  }

  void attended(const LayerView& view, ConstRef outputs) override {
    int64_t tokens = 0;
    for (const Segment& segment : view.segments) tokens += segment.count;
    const int64_t values = tokens * view.q_heads;
    if (values == 0) return;
    distances_.reserve(view.backend, DType::kF32, 2 * values);
    for (const Segment& segment : view.segments) compare(view, segment, outputs, values);
    const auto all = to_host(view.backend, std::as_const(distances_).ref().as<float>(), 2 * values);
    for (const Segment& segment : view.segments) add(view, segment, all, values);
  }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    const SourceInfo& source = *view_.batch.source;
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) {
      double all = 0;
      for (int layer = 0; layer < source.layers; ++layer) {
        const double mean = sum(s, layer) / static_cast<double>(values_[static_cast<size_t>(s)]);
        all += mean / source.layers;
        if (!per_layer_) continue;
        rows.push_back({.sample = s,
                        .layer = source.layer_numbers[static_cast<size_t>(layer)],
                        .metric = "output_distance_layer",
                        .value = mean});
      }
      rows.push_back({.sample = s, .metric = "output_distance", .value = all});
    }
  }

  std::vector<std::string> numbers() const override { return {"output_distance"}; }

  std::vector<Headline> headlines() const override {
    return {{.name = "output-distance",
             .title = "Distance of head outputs from the full cache's, relative",
             .metric = "output_distance",
             .better = "lower"}};
  }

 private:
  double& sum(int sequence, int layer) {
    return sums_[static_cast<size_t>(sequence * view_.batch.source->layers + layer)];
  }

  // Of the segment's tokens and query heads, into their places of distances_ [2, values].
  void compare(const LayerView& view, const Segment& segment, ConstRef outputs, int64_t values) {
    const int64_t token_elements = int64_t{view.q_heads} * view.head_dim;
    const int64_t full_token = segment.sequence * view_.baseline->max_tokens + segment.first_position;
    const auto offset = static_cast<size_t>(segment.first_token * token_elements) * bytes_of(outputs.dtype);
    const int64_t first = segment.first_token * view.q_heads;
    view.backend.row_distance(
        {.a = {static_cast<const char*>(outputs.data) + offset, outputs.dtype},
         .b = view_.baseline->layers[static_cast<size_t>(view.layer)].outputs.at(full_token * token_elements),
         .distance = distances_.at(first).as<float>(),
         .length = distances_.at(values + first).as<float>(),
         .rows = int64_t{segment.count} * view.q_heads,
         .width = view.head_dim});
  }

  void add(const LayerView& view, const Segment& segment, const std::vector<float>& all, int64_t values) {
    const int64_t first = segment.first_token * view.q_heads, count = int64_t{segment.count} * view.q_heads;
    for (int64_t i = first; i < first + count; ++i) {
      const double distance = all[static_cast<size_t>(i)], length = all[static_cast<size_t>(values + i)];
      sum(segment.sequence, view.layer) += length > 0 ? std::sqrt(distance / length) : distance > 0 ? 1 : 0;
    }
    if (view.layer == 0) values_[static_cast<size_t>(segment.sequence)] += count;
  }

  bool per_layer_;
  CaseView view_;
  std::vector<double> sums_;     // [sequences, layers]
  std::vector<int64_t> values_;  // [sequences] tokens · q_heads
  Tensor distances_;             // of a layer's block: [2, tokens · q_heads]
};

const RegisterMetric registered{
    {.name = "output_distance",
     .summary = "output_distance: of the heads' outputs from the full cache's, relative (004's output error)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<OutputDistance>(params); }}};

}  // namespace
}  // namespace kv
