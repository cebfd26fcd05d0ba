// hidden_distance: how far the model's last hidden states are from those of the full cache.
//   hidden_distance           mean over tokens and elements of (h − h̄)², h after the last norm: what WG-KV's gates are
//                             trained by, before the weight of sparsity (004, Sec. 3.3)
//   hidden_distance_relative  √(Σ ‖h − h̄‖² / Σ ‖h̄‖²), over tokens
// Over all tokens of a sample, those before an event or within a window, too, as the training has it.

#include <cmath>

#include "harness/metrics/metric.h"
#include "harness/metrics/token_record.h"
#include "kernels/check.h"
#include "kernels/row_distance.h"
#include "sim/cache/to_host.h"

namespace kv {
namespace {

class HiddenDistance final : public Metric {
 public:
  ObserverNeeds observer_needs() const override {
    return {.baseline = {.hidden = true}, .takes_unseen = true, .takes_unread = true, .takes_capacity = true};
  }

  void begin_case(const CaseView& view) override {
    KV_CHECK(view.baseline && view.baseline->has.hidden);
    view_ = view;
    sums_.assign(view.samples.size(), {});
  }

  void block_done(const Block& block, const TokenLosses& losses) override {
    if (!losses.hidden.data || block.tokens == 0) return;
    Backend& backend = *view_.batch.backend;
    distances_.reserve(backend, DType::kF32, 2 * block.tokens);
    for (const Segment& segment : block.segments) compare(segment, losses.hidden, block.tokens);
    const auto all = to_host(backend, std::as_const(distances_).ref().as<float>(), 2 * block.tokens);
    for (const Segment& segment : block.segments) add(segment, all, block.tokens);
  }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) {
      const Sums& sums = sums_[static_cast<size_t>(s)];
      if (sums.tokens == 0) {
        rows.push_back({.sample = s, .metric = "hidden_distance", .skipped = kNoLosses});
        continue;
      }
      const double elements = static_cast<double>(sums.tokens) * view_.batch.source->width;
      rows.push_back({.sample = s, .metric = "hidden_distance", .value = sums.distance / elements});
      rows.push_back(
          {.sample = s, .metric = "hidden_distance_relative", .value = std::sqrt(sums.distance / sums.length)});
    }
  }

  std::vector<std::string> numbers() const override { return {"hidden_distance", "hidden_distance_relative"}; }

  std::vector<Headline> headlines() const override {
    return {{.name = "hidden-distance",
             .title = "Distance of the last hidden states from the full cache's, relative",
             .metric = "hidden_distance_relative",
             .better = "lower"}};
  }

 private:
  struct Sums {
    int64_t tokens = 0;
    double distance = 0, length = 0;
  };

  // Of the segment's tokens, into their places of distances_ [2, tokens].
  void compare(const Segment& segment, ConstRef hidden, int64_t tokens) {
    const int64_t width = view_.batch.source->width;
    const int64_t full_token = segment.sequence * view_.baseline->max_tokens + segment.first_position;
    const auto offset = static_cast<size_t>(segment.first_token * width) * bytes_of(hidden.dtype);
    view_.batch.backend->row_distance({.a = {static_cast<const char*>(hidden.data) + offset, hidden.dtype},
                                       .b = view_.baseline->hidden.at(full_token * width),
                                       .distance = distances_.at(segment.first_token).as<float>(),
                                       .length = distances_.at(tokens + segment.first_token).as<float>(),
                                       .rows = segment.count,
                                       .width = width});
  }

  void add(const Segment& segment, const std::vector<float>& all, int64_t tokens) {
    Sums& sums = sums_[static_cast<size_t>(segment.sequence)];
    sums.tokens += segment.count;
    for (int64_t token = segment.first_token; token < segment.first_token + segment.count; ++token) {
      sums.distance += all[static_cast<size_t>(token)];
      sums.length += all[static_cast<size_t>(tokens + token)];
    }
  }

  CaseView view_;
  std::vector<Sums> sums_;  // [sequences]
  Tensor distances_;        // of a block: [2, tokens]
};

const RegisterMetric registered{
    {.name = "hidden_distance",
     .summary = "hidden_distance, hidden_distance_relative: of the last hidden states from the full cache's (004's "
                "distillation loss)",
     .make = [](Params&) -> std::unique_ptr<Metric> { return std::make_unique<HiddenDistance>(); }}};

}  // namespace
}  // namespace kv
