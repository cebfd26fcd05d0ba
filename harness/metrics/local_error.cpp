// What eviction alone does to attention, hidden states being those of the full cache (001 App. A; policies.md 3.2 ii):
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

#include "harness/metrics/residents.h"
#include "harness/metrics/token_record.h"
#include "kernels/check.h"
#include "kernels/retained_mass.h"
#include "sim/half.h"

namespace kv {

namespace {

std::vector<float> floats_of(Backend& backend, ConstRef data, int64_t count) {
  if (data.dtype == DType::f32) return to_host(backend, data.as<float>(), count);
  KV_CHECK(data.dtype == DType::bf16);
  const auto bits = to_host(backend, static_cast<const uint16_t*>(data.data), count);
  std::vector<float> values(bits.size());
  std::transform(bits.begin(), bits.end(), values.begin(), bf16_to_f32);
  return values;
}

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
    residents_.begin(view);
    sums_.assign(view.samples.size(), {});
    norms_.assign(view.samples.size() * view.baseline->layers.size(), {});
  }

  void attended(const LayerView& view, ConstRef) override {
    residents_.append(view);
    for (const Segment& segment : view.segments) {
      choose(segment);
      if (!positions_.empty()) measure(view, segment.sequence);
    }
  }

  void evicting(const EvictionView& view) override {
    residents_.cut(view, to_host(view.layer.backend, view.keep, view.layer.rows() * view.pitch));
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

 private:
  // Positions of the measured queries of a segment.
  void choose(const Segment& segment) {
    positions_.clear();
    const int32_t first = view_.first_event[static_cast<size_t>(segment.sequence)];
    if (first < 0) return;
    for (int32_t i = 0; i < segment.count; ++i) {
      const int32_t position = segment.first_position + i;
      if (position >= first && (position - first) % stride_ == 0) positions_.push_back(position);
    }
  }

  void measure(const LayerView& view, int s) {
    const Baseline& baseline = *view_.baseline;
    const BaselineLayer& layer = baseline.layers[static_cast<size_t>(view.layer)];
    const int64_t tokens = baseline.max_tokens;
    const int64_t count = static_cast<int64_t>(positions_.size());
    const int64_t values = count * view.q_heads;
    upload_inputs(view, s, layer);
    for (Tensor* tensor : {&evicted_, &error_, &cosine_}) tensor->reserve(view.backend, DType::f32, values);
    const int64_t first_key = s * tokens * view.kv_heads * view.head_dim;
    view.backend.retained_mass({.queries = std::as_const(queries_).ref(),
                                .keys = layer.keys.at(first_key),
                                .values = layer.values.at(first_key),
                                .query_positions = device_positions_.ref().as<int32_t>(),
                                .keep = device_keep_.ref().as<uint8_t>(),
                                .count = count,
                                .tokens = tokens,
                                .q_heads = view.q_heads,
                                .kv_heads = view.kv_heads,
                                .head_dim = view.head_dim,
                                .scale = view.scale,
                                .evicted = evicted_.ref().as<float>(),
                                .error = error_.ref().as<float>(),
                                .cosine = cosine_.ref().as<float>()});
    add(view, s);
  }

  void upload_inputs(const LayerView& view, int s, const BaselineLayer& layer) {
    const int64_t tokens = view_.baseline->max_tokens;
    keep_.assign(static_cast<size_t>(view.kv_heads * tokens), 0);
    for (int head = 0; head < view.kv_heads; ++head) {
      for (const int32_t position : residents_.row(view.layer, s * view.kv_heads + head)) {
        keep_[static_cast<size_t>(head * tokens + position)] = 1;
      }
    }
    device_keep_.reserve(view.backend, DType::u8, static_cast<int64_t>(keep_.size()));
    device_keep_.upload(keep_.data(), keep_.size());
    const int64_t count = static_cast<int64_t>(positions_.size());
    device_positions_.reserve(view.backend, DType::i32, count);
    device_positions_.upload(positions_.data(), positions_.size() * sizeof(int32_t));
    const int64_t query = static_cast<int64_t>(view.q_heads) * view.head_dim;
    queries_.reserve(view.backend, layer.queries.dtype(), count * query);
    for (int64_t n = 0; n < count; ++n) {
      const int64_t from = (s * tokens + positions_[static_cast<size_t>(n)]) * query;
      view.backend.copy(queries_.at(n * query).data, layer.queries.at(from).data,
                        static_cast<size_t>(query) * bytes_of(layer.queries.dtype()));
    }
  }

  void add(const LayerView& view, int s) {
    const int64_t values = static_cast<int64_t>(positions_.size()) * view.q_heads;
    const auto evicted = to_host(view.backend, evicted_.ref().as<float>(), values);
    const auto error = to_host(view.backend, error_.ref().as<float>(), values);
    const auto cosine = to_host(view.backend, cosine_.ref().as<float>(), values);
    const auto& norms = largest_norms(view, s);
    Sums& sums = sums_[static_cast<size_t>(s)];
    for (size_t i = 0; i < static_cast<size_t>(values); ++i) {
      const size_t position = static_cast<size_t>(positions_[i / static_cast<size_t>(view.q_heads)]);
      const size_t head = i % static_cast<size_t>(view.q_heads) / static_cast<size_t>(view.group());
      const double largest = norms[position * static_cast<size_t>(view.kv_heads) + head];
      const double bound = 2 * largest * evicted[i];
      const double slack = 4 * (static_cast<double>(position) + 17) * 0x1p-24 * largest;
      ++sums.values;
      sums.cosine += cosine[i];
      sums.evicted += evicted[i];
      sums.error += error[i];
      sums.bound += bound;
      // The accepting form, so that NaN counts as a violation.
      sums.violations += error[i] <= bound + slack ? 0 : 1;
    }
  }

  // [tokens, kv_heads]: max over positions up to this one of ‖v‖₂. Read once a layer and sequence, in pieces.
  const std::vector<float>& largest_norms(const LayerView& view, int s) {
    auto& norms = norms_[static_cast<size_t>(s) * view_.baseline->layers.size() + static_cast<size_t>(view.layer)];
    if (!norms.empty()) return norms;
    const BaselineLayer& layer = view_.baseline->layers[static_cast<size_t>(view.layer)];
    const int64_t length = view_.baseline->lengths[static_cast<size_t>(s)];
    const int64_t token = static_cast<int64_t>(view.kv_heads) * view.head_dim;
    constexpr int64_t kPiece = 512;
    for (int64_t begin = 0; begin < length; begin += kPiece) {
      const int64_t count = std::min(kPiece, length - begin);
      const auto values =
          floats_of(view.backend, layer.values.at((s * view_.baseline->max_tokens + begin) * token), count * token);
      for (int64_t i = 0; i < count * view.kv_heads; ++i) {
        double square = 0;
        for (int64_t d = i * view.head_dim; d < (i + 1) * view.head_dim; ++d) {
          square += static_cast<double>(values[static_cast<size_t>(d)]) * values[static_cast<size_t>(d)];
        }
        const size_t heads = static_cast<size_t>(view.kv_heads);
        const float before = norms.size() < heads ? 0 : norms[norms.size() - heads];
        norms.push_back(std::max(before, static_cast<float>(std::sqrt(square))));
      }
    }
    return norms;
  }

  int stride_;
  CaseView view_;
  Residents residents_;
  std::vector<Sums> sums_;
  std::vector<std::vector<float>> norms_;  // [sequences, layers]
  std::vector<int32_t> positions_;
  std::vector<uint8_t> keep_;
  Tensor queries_, device_positions_, device_keep_, evicted_, error_, cosine_;
};

const RegisterMetric kLocalError{
    {.name = "local_error",
     .summary = "cosine_local, evicted_mass, output_error, error_bound (2 C epsilon), bound_violations: the effect of "
                "the retained set alone (001 App. A)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<LocalError>(params); }}};

}  // namespace

}  // namespace kv
