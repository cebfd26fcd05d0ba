#include "policies/parts/foresight_scorer.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/attention_columns.h"
#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/window_attention.h"

namespace kv {

namespace {

constexpr float kDecay = 0.9F;  // of attention, an interval
// Features of a query head: sums over the newest 8, 16, 32 queries, over the interval's, over all, decayed.
constexpr int kFeatures = 6;
constexpr int kSuffixes[3] = {8, 16, ForesightScorer::kWindow};

}  // namespace

ForesightShape ForesightShape::read(Params& params) {
  ForesightShape shape;
  shape.reads_entry = params.get("inputs", "attention+kv", {"attention+kv", "attention"},
                                 "what the network reads: key and value of an entry and the attention it received, or "
                                 "the attention alone (001 Table 5)") == "attention+kv";
  shape.hidden = params.get("hidden", 16, "units of its hidden layer (8, 16, 32 or 64; 001: 16)");
  if (shape.hidden != 8 && shape.hidden != 16 && shape.hidden != 32 && shape.hidden != 64) {
    params.fail("hidden", "expected 8, 16, 32 or 64");
  }
  return shape;
}

std::map<std::string, std::string> ForesightShape::settings() const {
  return {{"features", "paper"},
          {"inputs", reads_entry ? "attention+kv" : "attention"},
          {"hidden", std::to_string(hidden)}};
}

EntryNetwork ForesightShape::network(const SourceInfo& info) const {
  return {.entry_dim = reads_entry ? info.head_dim : 0, .feature_count = kFeatures * info.group(), .hidden = hidden};
}

std::vector<LearnedPart> ForesightShape::parts(const SourceInfo& info) const {
  return {{"hidden.weight", {network(info).inputs(), hidden}},
          {"hidden.bias", {hidden}},
          {"output.weight", {hidden}},
          {"output.bias", {}}};
}

void ForesightScorer::use(const SourceInfo& info, std::span<const float> parameters) {
  KV_CHECK(std::ssize(parameters) == int64_t{info.layers} * info.kv_heads * elements_of(shape_.parts(info)));
  network_ = shape_.network(info);
  kv_heads_ = info.kv_heads;
  parameters_.assign(parameters.begin(), parameters.end());
}

EntryNetwork ForesightScorer::network(int layer) const {
  EntryNetwork network = network_;
  network.features = views_[keeps_features_ ? static_cast<size_t>(layer) : 0];
  network.parameters = on_device_.ref().as<float>() + layer * kv_heads_ * network_.parameter_count();
  return network;
}

Needs ForesightScorer::needs() const { return {.head_columns = 3, .column_sums = true, .window_queries = kWindow}; }

Protection ForesightScorer::protects(int, int interval) const { return {.recent = interval}; }

void ForesightScorer::check_budget(int kept, int interval) const {
  if (interval == 0) {
    throw UserError(
        "foresight-kv: one-shot compression is not covered (expected decode-time pruning with an interval)");
  }
  if (kept <= interval) {
    throw UserError(fmt::format("foresight-kv: budget {} must exceed the interval {}", kept, interval));
  }
  if (kept + interval < kWindow) {
    throw UserError(
        fmt::format("foresight-kv: budget {} and interval {} are less than the {} newest queries, which "
                    "judge",
                    kept, interval, kWindow));
  }
}

void ForesightScorer::begin(const BatchShape& shape) {
  const SourceInfo& info = *shape.source;
  const EntryNetwork needed = shape_.network(info);
  KV_CHECK(!parameters_.empty() && network_.inputs() == needed.inputs() && kv_heads_ == info.kv_heads);
  group_ = info.group();
  budget_ = shape.budget;
  interval_ = shape.interval;
  draw_.begin(shape, keeps_features_);
  on_device_ = Tensor(*shape.backend, DType::kF32, std::ssize(parameters_));
  on_device_.upload(parameters_.data(), parameters_.size() * sizeof(float));
  const size_t kept = keeps_features_ ? static_cast<size_t>(info.layers) : 1;
  features_.resize(kept);
  views_.assign(kept, {});
}

void ForesightScorer::observe(const LayerView& view) {
  view.backend.attention_columns_add({.cache = view.cache,
                                      .segments = view.device_segments,
                                      .segment_count = std::ssize(view.segments),
                                      .sums = view.column_sums,
                                      .group = group_,
                                      .early_tokens = budget_,
                                      .pool_columns = view.columns});
}

void ForesightScorer::score(const LayerView& view, const ScoreOutput& out) {
  const size_t at = keeps_features_ ? static_cast<size_t>(view.layer) : 0;
  const int planes = network_.feature_count;
  const Slots<float> features = features_[at].reserve_slots<float>(view.backend, view.rows() * planes, view.pitch);
  views_[at] = features;
  WindowAttentionArgs window{.mode = WindowAttentionArgs::Mode::kSuffixSums,
                             .queries = view.window_queries,
                             .cache = view.cache,
                             .window = view.window,
                             .q_heads = view.q_heads,
                             .scale = view.scale,
                             .planes = planes,
                             .rows_due = out.rows_due,
                             .scores = features};
  // No further back than the interval, so that none is more than the sum over it.
  for (int k = 0; k < 3; ++k) window.suffixes[k] = std::min(kSuffixes[k], interval_);
  view.backend.window_attention(window);
  view.backend.attention_columns_fold({.cache = view.cache,
                                       .rows_due = out.rows_due,
                                       .group = group_,
                                       .decay = kDecay,
                                       .pool_columns = view.columns,
                                       .features = features,
                                       .planes = planes,
                                       .first_plane = 3 * group_});
  view.backend.rate_entries({.cache = view.cache,
                             .network = network(view.layer),
                             .rows_due = out.rows_due,
                             .drop_newest = interval_,
                             .output = draw_.is_drawn() ? out.ties : out.scores});
  if (draw_.is_drawn()) draw_.draw(view, out);
}

}  // namespace kv
