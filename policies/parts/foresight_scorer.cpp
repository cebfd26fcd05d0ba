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
constexpr int kNewest[] = {8, 16, ForesightScorer::kWindow};
constexpr int kSumsInCode = 4;  // the same one, by mistake

// No further back than the interval, so that none is more than the sum over it.
Suffixes suffixes_of(int budget, int interval) {
  Suffixes suffixes{.first = budget, .interval = interval};
  for (const int newest : kNewest) suffixes.of[suffixes.count++] = std::min(newest, interval);
  return suffixes;
}

int features_of_head(ForesightShape::Features features) { return features == ForesightShape::Features::kPaper ? 6 : 8; }

}  // namespace

ForesightShape ForesightShape::read(Params& params) {
  ForesightShape shape;
  if (params.get("features", "paper", {"paper", "code"},
                 "of the attention received, a query head: six as in the paper, or eight as the released training has "
                 "them (largest, smallest and sum over the interval's queries, three copies of it, all, decayed)") ==
      "code") {
    shape.features = Features::kCode;
  }
  shape.recomputes_sums =
      params.get(
          "sums", "recomputed", {"recomputed", "kept"},
          "over an interval's queries: recomputed at the event from the queries, which are cached with their softmax "
          "sums (always with features: code), or kept by every block's attention; the same numbers, but with kept "
          "entries are larger and generation of large batches on a GPU is slower by half") == "recomputed";
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
  return {{"features", features == Features::kPaper ? "paper" : "code"},
          {"inputs", reads_entry ? "attention+kv" : "attention"},
          {"hidden", std::to_string(hidden)}};
}

EntryNetwork ForesightShape::network(const SourceInfo& info) const {
  return {.entry_dim = reads_entry ? info.head_dim : 0,
          .feature_count = features_of_head(features) * info.group(),
          .hidden = hidden};
}

std::vector<LearnedPart> ForesightShape::parts(const SourceInfo& info) const {
  return {{"hidden.weight", {network(info).inputs(), hidden}},
          {"hidden.bias", {hidden}},
          {"output.weight", {hidden}},
          {"output.bias", {}}};
}

LearnedDemand ForesightShape::demand() const {
  return {.settings = settings(),
          .parts = [shape = *this](const LearnedFile&, const SourceInfo& info) { return shape.parts(info); }};
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

Needs ForesightScorer::needs() const {
  const bool recomputes = shape_.recomputes();
  return {.head_columns = recomputes ? 2 : 3 + static_cast<int>(std::size(kNewest)),
          .column_sums = true,
          .late_queries = recomputes ? 0 : kWindow,
          .log_sums = recomputes,
          .interval_queries = recomputes,
          .even_intervals = true};
}

Protection ForesightScorer::protects(int, int interval) const { return {.recent = interval}; }

void ForesightScorer::check_budget(int kept, int interval) const {
  if (interval == 0) {
    throw UserError(
        "foresight-kv: one-shot compression is not covered (expected decode-time pruning with an interval)");
  }
  if (kept <= interval) {
    throw UserError(fmt::format("foresight-kv: budget {} must exceed the interval {}", kept, interval));
  }
  // Whichever way sums are taken, so that both accept the same budgets.
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
  interval_ = shape.interval;
  suffixes_ = suffixes_of(shape.budget, shape.interval);
  late_ = {};
  draw_.begin(shape, keeps_features_);
  unpruned_.begin(shape, shape_.recomputes() && shape.filled == 0);
  on_device_ = Tensor(*shape.backend, DType::kF32, std::ssize(parameters_));
  on_device_.upload(parameters_.data(), parameters_.size() * sizeof(float));
  if (shape_.recomputes()) {
    std::vector<int32_t> summed;
    for (int s = 0; s < shape.sequences; ++s) {
      summed.insert(summed.end(), suffixes_.of, suffixes_.of + suffixes_.count);
      summed.push_back(interval_);
    }
    queries_summed_ = Tensor(*shape.backend, DType::kI32, std::ssize(summed));
    queries_summed_.upload(summed.data(), summed.size() * sizeof(int32_t));
  }
  const size_t kept = keeps_features_ ? static_cast<size_t>(info.layers) : 1;
  features_.resize(kept);
  views_.assign(kept, {});
}

size_t ForesightScorer::learned_bytes(const SourceInfo& info, DType) const {
  const int64_t parameters = int64_t{info.layers} * info.kv_heads * elements_of(shape_.parts(info));
  return static_cast<size_t>(parameters) * sizeof(float);
}

void ForesightScorer::observe(const LayerView& view) {
  const bool recomputes = shape_.recomputes();
  if (recomputes && !unpruned_.any(view.layer)) return;
  AttentionColumnsAddArgs columns{
      .cache = view.cache,
      .segments = view.device_segments,
      .segment_count = std::ssize(view.segments),
      .sequences = recomputes ? unpruned_.on_device(view.layer) : nullptr,
      .sums = view.column_sums,
      .group = group_,
      .suffixes = recomputes ? Suffixes{.first = AttentionColumnsAddArgs::kAllEarly} : suffixes_,
      .pool_columns = view.columns};
  const bool is_of_single_tokens =
      std::ranges::all_of(view.segments, [](const Segment& segment) { return segment.count <= 1; });
  if (!recomputes && !is_of_single_tokens) columns.suffix_sums = late_.sums(view, suffixes_);
  view.backend.attention_columns_add(columns);
}

void ForesightScorer::score(const LayerView& view, const ScoreOutput& out) {
  const size_t at = keeps_features_ ? static_cast<size_t>(view.layer) : 0;
  const Slots<float> features =
      features_[at].reserve_slots<float>(view.backend, view.rows() * network_.feature_count, view.pitch);
  views_[at] = features;
  if (shape_.recomputes()) sum_attention(view, out, features);
  fold(view, out, features);
  view.backend.rate_entries({.cache = view.cache,
                             .network = network(view.layer),
                             .rows_due = out.rows_due,
                             .drop_newest = interval_,
                             .output = draw_.is_drawn() ? out.ties : out.scores});
  if (draw_.is_drawn()) draw_.draw(view, out);
}

void ForesightScorer::sum_attention(const LayerView& view, const ScoreOutput& out, Slots<float> features) const {
  const bool is_code = shape_.features == ForesightShape::Features::kCode;
  view.backend.window_attention(
      {.mode = is_code ? WindowAttentionArgs::Mode::kExtremes : WindowAttentionArgs::Mode::kSuffixSums,
       .queries = view.window_queries,
       .query_rows = view.window_rows,
       .cache = view.cache,
       .log_sums = view.window_log_sums,
       .window = view.window,
       .q_heads = view.q_heads,
       .scale = view.scale,
       .suffix_count = suffixes_.count + 1,
       .suffixes = queries_summed_.ref().as<int32_t>(),
       .planes = network_.feature_count,
       .rows_due = out.rows_due,
       .scores = features});
}

void ForesightScorer::fold(const LayerView& view, const ScoreOutput& out, Slots<float> features) {
  const bool recomputes = shape_.recomputes(), is_code = shape_.features == ForesightShape::Features::kCode;
  const int before_interval = is_code ? WindowAttentionArgs::kExtremeCount - 1 : suffixes_.count;
  view.backend.attention_columns_fold({.cache = view.cache,
                                       .rows_due = out.rows_due,
                                       .group = group_,
                                       .decay = kDecay,
                                       .has_recent = !recomputes,
                                       .suffix_count = recomputes ? 0 : suffixes_.count,
                                       .rows_counted = rows_counted(view, out),
                                       .pool_columns = view.columns,
                                       .features = features,
                                       .planes = network_.feature_count,
                                       .first_plane = recomputes ? before_interval * group_ : 0,
                                       .recent_planes = is_code ? kSumsInCode : 1});
}

// Of sequences at their first event, which was summed with all before it; from then on it is events that add.
const uint8_t* ForesightScorer::rows_counted(const LayerView& view, const ScoreOutput& out) {
  if (!unpruned_.any(view.layer)) return nullptr;
  std::vector<uint8_t> counted(static_cast<size_t>(view.rows()), 0);
  for (int row = 0; row < view.rows(); ++row) {
    counted[static_cast<size_t>(row)] = unpruned_.is_marked(view.layer, row / kv_heads_) ? 1 : 0;
  }
  for (int s = 0; s < std::ssize(out.sequences_due); ++s) {
    if (out.sequences_due[static_cast<size_t>(s)] != 0) unpruned_.mark(view.layer, s, false);
  }
  unpruned_.upload(view.layer);
  counted_.reserve(view.backend, DType::kU8, std::ssize(counted));
  counted_.upload(counted.data(), counted.size());
  return counted_.ref().as<uint8_t>();
}

}  // namespace kv
