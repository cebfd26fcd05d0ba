// How long tokens stay useful under the full cache (003 Fig. 2). Query t selects key i if i is among
// its top_k most attended keys (survival_top_k) or in the smallest set that reaches `mass` (survival_mass); ties to the
// newer key.
//   life_i = max{t − i : t selects i}, 0 if never;   S(Δ) = |{i : life_i >= Δ}| / |{i : i <= T − 1 − Δ}|
// 003 does not state the denominator: tokens that could have reached Δ. Rows: S at x = Δ = 1, 2, 4, … < T, mean over
// layers and query heads; survival_*_head = S(Δ0) of each (layer, query head), Δ0 = option delta, x = Δ0. Each query
// head selects for itself. Only `full` holds what later queries would select: other policies give a skipped row.
//
// top_share = p adds survival_top_share, where a query selects round(p · T) keys, at least one: texts of all lengths
// then select alike. law=geometric adds survival_*_excess at x = Δ with 2Δ < T: S(2Δ) − S(Δ)², mean over
// layers and query heads, taken a head since heads differ (a mean of geometric laws is none). 003's geometric
// retention, P(alive at Δ) = β^Δ, has 0 at every Δ; above 0, what has lived for Δ lives through another Δ more often
// than it lived through the first.

#include <algorithm>
#include <cmath>
#include <memory>

#include "harness/metrics/metric.h"
#include "harness/metrics/residents.h"
#include "kernels/survival.h"

namespace kv {

namespace {

struct Criterion {
  std::string metric;
  int top_k = 0;         // of every query, unless
  double top_share = 0;  // > 0: of the text's length
  float mass = 0;
  std::vector<Tensor> last_selected;  // [layers] of [rows, group, tokens]
};

class Survival : public Metric {
 public:
  explicit Survival(Params& params)
      : delta_(params.get("delta", 1024, "distance in tokens of the heat map of layers and heads")) {
    const std::string criterion =
        params.get("criterion", "both", {"both", "top_k", "mass"}, "what it takes to be selected");
    const int top_k = params.get("top_k", 64, "keys that a query selects");
    const double top_share =
        params.get("top_share", 0.0,
                   "survival_top_share rows, too: keys that a query selects as a share of the text's length; 0: none");
    law_ = params.get("law", "none", {"none", "geometric"},
                      "geometric: _excess rows, S(2x) less the square of S(x), which a geometric law has at 0") ==
           "geometric";
    const double mass = params.get("mass", 0.9, "attention that the selected keys reach together");
    if (delta_ < 1) params.fail("delta", "expected at least 1");
    if (top_k < 1) params.fail("top_k", "expected at least 1");
    if (!(top_share >= 0 && top_share <= 1)) params.fail("top_share", "expected a share from 0 to 1");
    if (top_share > 0 && criterion == "mass") params.fail("top_share", "expected with criterion both or top_k only");
    if (!(mass > 0 && mass <= 1)) params.fail("mass", "expected a share in (0, 1]");
    if (criterion != "mass") criteria_.push_back({.metric = "survival_top_k", .top_k = top_k});
    if (top_share > 0) criteria_.push_back({.metric = "survival_top_share", .top_share = top_share});
    if (criterion != "top_k") criteria_.push_back({.metric = "survival_mass", .mass = static_cast<float>(mass)});
  }

  void begin_case(const CaseView& view) override {
    view_ = view;
    evicted_ = false;
    tokens_ = 1;
    for (const Sample* sample : view.samples) tokens_ = std::max(tokens_, static_cast<int64_t>(sample->ids.size()));
    const SourceInfo& source = *view.batch.source;
    const int64_t elements = static_cast<int64_t>(view.samples.size()) * source.q_heads * tokens_;
    const std::vector<int32_t> never(static_cast<size_t>(elements), -1);
    for (Criterion& criterion : criteria_) {
      criterion.last_selected.clear();
      for (int layer = 0; layer < source.layers; ++layer) {
        criterion.last_selected.emplace_back(*view.batch.backend, DType::kI32, elements);
        criterion.last_selected.back().upload(never.data(), never.size() * sizeof(int32_t));
      }
    }
  }

  void attended(const LayerView& view, ConstRef) override {
    if (evicted_) return;
    for (Criterion& criterion : criteria_) {
      if (criterion.top_share == 0) {
        select(view, criterion, criterion.top_k, 0, view.sequences);
        continue;
      }
      for (int s = 0; s < view.sequences; ++s) select(view, criterion, top_of(criterion, length_of(s)), s, 1);
    }
  }

  void evicting(const EvictionView&) override { evicted_ = true; }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) {
      for (Criterion& criterion : criteria_) {
        if (evicted_) {
          rows.push_back({.sample = s, .metric = criterion.metric, .skipped = "only the full cache shows survival"});
        } else {
          report_sample(s, criterion, rows);
        }
      }
    }
  }

 private:
  int64_t length_of(int s) const { return static_cast<int64_t>(view_.samples[static_cast<size_t>(s)]->ids.size()); }

  static int top_of(const Criterion& criterion, int64_t length) {
    return std::max(1, static_cast<int>(std::lround(criterion.top_share * static_cast<double>(length))));
  }

  // What the queries of the block select, of `count` sequences from `first` on.
  void select(const LayerView& view, Criterion& criterion, int top_k, int first, int count) {
    view.backend.survival(
        {.queries = view.projections.queries,
         .cache = view.cache,
         .segments = view.device_segments + first,
         .segment_count = count,
         .q_heads = view.q_heads,
         .scale = view.scale,
         .top_k = top_k,
         .mass = criterion.mass,
         .last_selected = criterion.last_selected[static_cast<size_t>(view.layer)].slots<int32_t>(tokens_)});
  }

  // Tokens by life: [T]. One (layer, query head).
  std::vector<int64_t> lives(int s, Tensor& last_selected, int q_head) const {
    const int64_t length = length_of(s);
    const int64_t first = (static_cast<int64_t>(s) * view_.batch.source->q_heads + q_head) * tokens_;
    const auto last = to_host(*view_.batch.backend, last_selected.at(first).as<int32_t>(), length);
    std::vector<int64_t> count(static_cast<size_t>(length), 0);
    for (size_t i = 0; i < last.size(); ++i) ++count[last[i] < 0 ? 0 : static_cast<size_t>(last[i]) - i];
    return count;
  }

  static double survivors(std::span<const int64_t> lives, int64_t delta) {
    int64_t long_lived = 0;
    for (size_t life = static_cast<size_t>(delta); life < lives.size(); ++life) long_lived += lives[life];
    return static_cast<double>(long_lived) / static_cast<double>(static_cast<int64_t>(lives.size()) - delta);
  }

  void report_sample(int s, Criterion& criterion, std::vector<Measured>& rows) const {
    const SourceInfo& source = *view_.batch.source;
    const int64_t length = length_of(s);
    std::vector<int64_t> deltas;
    for (int64_t delta = 1; delta < length; delta *= 2) deltas.push_back(delta);
    std::vector<double> curve(deltas.size(), 0), excess(deltas.size(), 0);
    for (int layer = 0; layer < source.layers; ++layer) {
      for (int head = 0; head < source.q_heads; ++head) {
        const auto count = lives(s, criterion.last_selected[static_cast<size_t>(layer)], head);
        for (size_t i = 0; i < deltas.size(); ++i) curve[i] += survivors(count, deltas[i]);
        for (size_t i = 0; i + 1 < deltas.size(); ++i) {
          const double alive = survivors(count, deltas[i]);
          excess[i] += survivors(count, deltas[i + 1]) - alive * alive;
        }
        if (delta_ >= length) continue;
        rows.push_back({.sample = s,
                        .layer = source.layer_numbers[static_cast<size_t>(layer)],
                        .head = head,
                        .x = delta_,
                        .metric = criterion.metric + "_head",
                        .value = survivors(count, delta_)});
      }
    }
    if (delta_ >= length) {
      rows.push_back(
          {.sample = s, .x = delta_, .metric = criterion.metric + "_head", .skipped = "the text is shorter"});
    }
    for (size_t i = 0; i < deltas.size(); ++i) {
      rows.push_back({.sample = s,
                      .x = static_cast<double>(deltas[i]),
                      .metric = criterion.metric,
                      .value = curve[i] / (source.layers * source.q_heads)});
    }
    for (size_t i = 0; law_ && i + 1 < deltas.size(); ++i) {
      rows.push_back({.sample = s,
                      .x = static_cast<double>(deltas[i]),
                      .metric = criterion.metric + "_excess",
                      .value = excess[i] / (source.layers * source.q_heads)});
    }
    if (deltas.empty()) rows.push_back({.sample = s, .metric = criterion.metric, .skipped = "the text is one token"});
  }

  int delta_;
  bool law_ = false;
  std::vector<Criterion> criteria_;
  CaseView view_;
  int64_t tokens_ = 1;
  bool evicted_ = false;
};

const RegisterMetric kSurvival{
    {.name = "survival",
     .summary = "survival_top_k, survival_mass over the distance x: share of tokens still selected that much later, in "
                "[0, 1]; under `full` only (003 Fig. 2)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<Survival>(params); }}};

}  // namespace

}  // namespace kv
