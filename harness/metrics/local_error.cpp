// What eviction alone does to attention, hidden states being those of the full cache (001 App. A):
// every `stride`-th query from the first event on, with queries, keys and values of the full pass, attends once to all
// keys before it and once to those that the policy still holds. Means over these queries, query heads and layers:
//   cosine_local   cos(o, ô)
//   evicted_mass   ε, the probability that the full cache gives to evicted keys
//   output_error   ‖o − ô‖₂
//   error_bound    2 C ε, C = the largest ‖v‖₂ of a key that the query sees (001 Prop. A.1)
//   bound_violations  the number of (query, head, layer) with ‖o − ô‖ > 2 C ε beyond rounding
//
// Rounding: with the same rounded logits on both sides the bound is exact; what remains are sums in f32. A query with n
// visible keys sums n weighted values, of total weight 1, into o and into ô: at most n·u·C each (u = 2^-24), a handful
// of roundings for the exponential, the division and the norm included with n + 16; ε loses at most as much, times 2C.
// Together 4 (n + 16) u C.

#include <algorithm>
#include <cmath>
#include <memory>

#include "harness/metrics/token_record.h"
#include "kernels/check.h"
#include "kernels/retained_mass.h"
#include "sim/cache/to_host.h"

namespace kv {

namespace {

struct Sums {
  int64_t values = 0;  // (query, head, layer)
  double cosine = 0;
  double evicted = 0;
  double error = 0;
  double bound = 0;
  int64_t violations = 0;
};

class LocalError : public Metric {
 public:
  explicit LocalError(Params& params) : stride_(params.get("stride", 16, "every stride-th query is measured")) {
    if (stride_ < 1) params.fail("stride", "expected at least 1");
  }

  ObserverNeeds observer_needs() const override { return {.baseline = {.projections = true}}; }

  void begin_case(const CaseView& view) override {
    KV_CHECK(view.baseline && view.baseline->has.projections);
    view_ = view;
    sums_.assign(view.samples.size(), {});
  }

  void attended(const LayerView& view, ConstRef) override {
    if (view.layer == 0) choose(view);
    if (!positions_.empty()) measure(view);
  }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) {
      const Sums& sums = sums_[static_cast<size_t>(s)];
      if (sums.values == 0) {
        for (const char* name : {"cosine_local", "evicted_mass", "output_error", "error_bound", "bound_violations"}) {
          rows.push_back({.sample = s, .metric = name, .skipped = kNoEvent});
        }
        continue;
      }
      const double values = static_cast<double>(sums.values);
      rows.push_back({.sample = s, .metric = "cosine_local", .value = sums.cosine / values});
      rows.push_back({.sample = s, .metric = "evicted_mass", .value = sums.evicted / values});
      rows.push_back({.sample = s, .metric = "output_error", .value = sums.error / values});
      rows.push_back({.sample = s, .metric = "error_bound", .value = sums.bound / values});
      rows.push_back({.sample = s, .metric = "bound_violations", .value = static_cast<double>(sums.violations)});
    }
  }

  std::vector<std::string> numbers() const override {
    return {"cosine_local", "evicted_mass", "output_error", "error_bound", "bound_violations"};
  }

  std::vector<Headline> headlines() const override {
    return {{.name = "cosine-local",
             .title = "Cosine of head outputs, by the retained set alone",
             .metric = "cosine_local",
             .better = "higher"},
            {.name = "output-error",
             .title = "Error of head outputs, by the retained set alone",
             .metric = "output_error",
             .better = "lower"}};
  }

 private:
  // The measured queries of a block, for all of its layers.
  void choose(const LayerView& view) {
    sequences_.clear();
    positions_.clear();
    for (const Segment& segment : view.segments) {
      const int32_t first = view_.first_event[static_cast<size_t>(segment.sequence)];
      if (first < 0) continue;
      for (int32_t i = 0; i < segment.count; ++i) {
        const int32_t position = segment.first_position + i;
        if (position < first || (position - first) % stride_ != 0) continue;
        sequences_.push_back(segment.sequence);
        positions_.push_back(position);
      }
    }
    if (positions_.empty()) return;
    const auto count = static_cast<int64_t>(positions_.size());
    device_queries_.reserve(view.backend, DType::kI32, 2 * count);
    device_queries_.upload(sequences_.data(), sequences_.size() * sizeof(int32_t));
    view.backend.upload(device_queries_.at(count).data, positions_.data(), positions_.size() * sizeof(int32_t));
  }

  void measure(const LayerView& view) {
    const Baseline& baseline = *view_.baseline;
    const BaselineLayer& layer = baseline.layers[static_cast<size_t>(view.layer)];
    const auto count = static_cast<int64_t>(positions_.size());
    const int64_t values = count * view.q_heads;
    results_.reserve(view.backend, DType::kF32, 3 * values + count * view.kv_heads);
    view.backend.retained_mass({.queries = layer.queries.ref(),
                                .keys = layer.keys.ref(),
                                .values = layer.values.ref(),
                                .cache = view.cache,
                                .sequences = std::as_const(device_queries_).ref().as<int32_t>(),
                                .positions = std::as_const(device_queries_).at(count).as<int32_t>(),
                                .count = count,
                                .tokens = baseline.max_tokens,
                                .q_heads = view.q_heads,
                                .scale = view.scale,
                                .evicted = results_.ref().as<float>(),
                                .error = results_.at(values).as<float>(),
                                .cosine = results_.at(2 * values).as<float>(),
                                .longest = results_.at(3 * values).as<float>()});
    add(view, to_host(view.backend, results_.ref().as<float>(), 3 * values + count * view.kv_heads));
  }

  void add(const LayerView& view, const std::vector<float>& results) {
    const auto q_heads = static_cast<size_t>(view.q_heads), kv_heads = static_cast<size_t>(view.kv_heads);
    const size_t values = positions_.size() * q_heads;
    const float* evicted = results.data();
    const float* error = evicted + values;
    const float* cosine = error + values;
    const float* longest = cosine + values;
    for (size_t i = 0; i < values; ++i) {
      const size_t query = i / q_heads, head = i % q_heads / static_cast<size_t>(view.group());
      const double largest = longest[query * kv_heads + head];
      const double bound = 2 * largest * evicted[i];
      const double slack = 4 * (static_cast<double>(positions_[query]) + 17) * 0x1p-24 * largest;
      Sums& sums = sums_[static_cast<size_t>(sequences_[query])];
      ++sums.values;
      sums.cosine += cosine[i];
      sums.evicted += evicted[i];
      sums.error += error[i];
      sums.bound += bound;
      // The accepting form, so that NaN counts as a violation.
      sums.violations += error[i] <= bound + slack ? 0 : 1;
    }
  }

  int stride_;
  CaseView view_;
  std::vector<Sums> sums_;
  std::vector<int32_t> sequences_, positions_;  // of the block's measured queries
  Tensor device_queries_;                       // [2, count]: the same
  Tensor results_;                              // evicted, error, cosine [count, q_heads]; longest [count, kv_heads]
};

const RegisterMetric kLocalError{
    {.name = "local_error",
     .summary = "cosine_local, evicted_mass, output_error, error_bound (2 C epsilon), bound_violations: the effect of "
                "the retained set alone (001 App. A)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<LocalError>(params); }}};

}  // namespace

}  // namespace kv
