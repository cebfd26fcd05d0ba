#include "sim/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <utility>

#include "kernels/attend.h"
#include "kernels/error.h"
#include "kernels/select_top.h"

namespace kv {

namespace {

class Stopwatch {
 public:
  explicit Stopwatch(Backend& backend) : backend_(backend) {}

  void start() { begin_ = std::chrono::steady_clock::now(); }
  void stop(double& sum) {
    backend_.synchronize();
    sum += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  Backend& backend_;
  std::chrono::steady_clock::time_point begin_;
};

// The newest `window` queries of every sequence of one layer, oldest first, kept across blocks.
class RecentQueries {
 public:
  RecentQueries(Backend& backend, int sequences, int window, int64_t query_elements)
      : backend_(backend), window_(window), query_elements_(query_elements) {
    current_ = Tensor(backend, backend.activation_type(), sequences * window * query_elements);
    next_ = Tensor(backend, backend.activation_type(), sequences * window * query_elements);
  }

  void push(std::span<const Segment> segments, ConstRef queries) {
    for (const Segment& segment : segments) {
      const int64_t fresh = std::min<int64_t>(segment.count, window_);
      const int64_t old = window_ - fresh;
      const int64_t base = static_cast<int64_t>(segment.sequence) * window_;
      copy(next_, base, current_.ref(), base + fresh, old);
      copy(next_, base + old, queries, segment.first_token + segment.count - fresh, fresh);
    }
    std::swap(current_, next_);
  }
  ConstRef view() const { return std::as_const(current_).ref(); }

 private:
  // Counts and offsets in queries.
  void copy(Tensor& to, int64_t to_query, ConstRef from, int64_t from_query, int64_t count) {
    if (count == 0) return;
    const size_t bytes = static_cast<size_t>(query_elements_) * bytes_of(to.dtype());
    backend_.copy(static_cast<char*>(to.ref().data) + static_cast<size_t>(to_query) * bytes,
                  static_cast<const char*>(from.data) + static_cast<size_t>(from_query) * bytes,
                  static_cast<size_t>(count) * bytes);
  }

  Backend& backend_;
  int window_;
  int64_t query_elements_;
  Tensor current_, next_;
};

void require(const Policy& policy, const PolicyNeeds& needs, const Source& source, const Baseline* baseline) {
  const SourceInfo& info = source.info();
  if (needs.future && !baseline) {
    throw UserError(fmt::format("{}: needs the full-cache pass (it is an oracle), which {} does not offer here",
                                policy.name, info.name));
  }
  if (needs.pre_rope_queries && !info.has_pre_rope_queries) {
    throw UserError(fmt::format("{}: needs pre-RoPE queries, which {} lacks", policy.name, info.name));
  }
}

// One run of the loop: the state that lives from block to block.
class Run {
 public:
  explicit Run(const ReplayArgs& args)
      : args_(args),
        info_(args.source.info()),
        needs_(args.policy.scorer ? args.policy.scorer->needs() : PolicyNeeds{}),
        cache_(args.backend, {.sequences = sequences(),
                              .layers = info_.layers,
                              .kv_heads = info_.kv_heads,
                              .head_dim = info_.head_dim,
                              .column_width = needs_.entry_columns}),
        watch_(args.backend) {
    require(args.policy, needs_, args.source, args.baseline);
    result_.sequences.resize(args.sequences.size());
    done_.assign(args.sequences.size(), 0);
    for (const Observer* observer : args.observers) {
      column_sums_wanted_ |= observer->observer_needs().column_sums;
      column_max_wanted_ |= observer->observer_needs().column_max;
    }
    column_sums_wanted_ |= needs_.column_sums;
    if (needs_.window_queries > 0) {
      const int64_t query = static_cast<int64_t>(info_.q_heads) * info_.head_dim;
      for (int layer = 0; layer < info_.layers; ++layer) {
        recent_.emplace_back(args.backend, sequences(), needs_.window_queries, query);
      }
    }
  }

  ReplayResult go() {
    Stopwatch total(args_.backend);
    total.start();
    begin();
    for (const Step& step : args_.schedule) run_step(step);
    finish_result();
    total.stop(result_.total_seconds);
    return std::move(result_);
  }

 private:
  int sequences() const { return static_cast<int>(args_.sequences.size()); }

  void begin() {
    numbers_.assign(args_.sample_numbers.begin(), args_.sample_numbers.end());
    if (numbers_.empty()) {
      numbers_.resize(args_.sequences.size());
      std::iota(numbers_.begin(), numbers_.end(), 0);
    }
    BatchShape shape{.backend = &args_.backend,
                     .source = &info_,
                     .sequences = sequences(),
                     .budget = args_.budget,
                     .interval = args_.interval,
                     .seed = args_.seed,
                     .sample_numbers = numbers_,
                     .future = needs_.future ? args_.baseline : nullptr};
    watch_.start();
    if (args_.policy.scorer) args_.policy.scorer->begin(shape);
    watch_.stop(result_.begin_seconds);
    for (Observer* observer : args_.observers) observer->begin(shape);
    args_.source.begin(args_.sequences);
  }

  void run_step(const Step& step) {
    block_ = make_block(args_.backend, done_, step.counts);
    for (size_t s = 0; s < done_.size(); ++s) done_[s] += step.counts[s];
    mark_due(step);
    args_.source.start(block_);
    for (int layer = 0; layer < info_.layers; ++layer) run_layer(layer);
    note_peak();
    cut(step);
    TokenLosses losses;
    args_.source.finish(losses);
    for (Observer* observer : args_.observers) observer->block_done(block_, losses);
  }

  // A sequence is due when the event would really remove something.
  void mark_due(const Step& step) {
    sequences_due_.assign(done_.size(), 0);
    any_due_ = false;
    if (!args_.policy.scorer) return;
    for (size_t s = 0; s < done_.size(); ++s) {
      if (step.keep[s] < 0) continue;
      const int32_t resident = cache_.lengths(0)[s * static_cast<size_t>(info_.kv_heads)] + step.counts[s];
      sequences_due_[s] = resident > step.keep[s] ? 1 : 0;
      any_due_ = any_due_ || sequences_due_[s];
    }
    if (!any_due_) return;
    rows_due_.clear();
    for (const uint8_t due : sequences_due_)
      rows_due_.insert(rows_due_.end(), static_cast<size_t>(info_.kv_heads), due);
    device_rows_due_.reserve(args_.backend, DType::u8, cache_.rows());
    device_rows_due_.upload(rows_due_.data(), rows_due_.size());
    device_done_.reserve(args_.backend, DType::i32, static_cast<int64_t>(done_.size()));
    device_done_.upload(done_.data(), done_.size() * sizeof(int32_t));
    scores_.resize(static_cast<size_t>(info_.layers));
    ties_.resize(static_cast<size_t>(info_.layers));
    pitches_.resize(static_cast<size_t>(info_.layers));
  }

  LayerView layer_view(int layer) {
    LayerView view{.backend = args_.backend,
                   .layer = layer,
                   .sequences = sequences(),
                   .q_heads = info_.q_heads,
                   .kv_heads = info_.kv_heads,
                   .head_dim = info_.head_dim,
                   .scale = info_.scale(),
                   .cache = cache_.view(layer),
                   .lengths = cache_.lengths(layer),
                   .columns = cache_.columns(),
                   .segments = block_.segments,
                   .device_segments = block_.on_device()};
    view.pitch = (view.cache.max_length + kPageTokens - 1) / kPageTokens * kPageTokens;
    if (!recent_.empty()) {
      view.window = needs_.window_queries;
      view.window_queries = recent_[static_cast<size_t>(layer)].view();
    }
    return view;
  }

  float* column_buffer(Tensor& tensor, bool wanted, const LayerView& view) {
    if (!wanted) return nullptr;
    tensor.reserve(args_.backend, DType::f32, view.rows() * view.group() * view.pitch);
    return tensor.ref().as<float>();
  }

  void run_layer(int layer) {
    const Projections projections = args_.source.project(layer);
    cache_.append(layer, block_.segments, block_.on_device(), projections.keys, projections.values);
    if (!recent_.empty()) recent_[static_cast<size_t>(layer)].push(block_.segments, projections.queries);
    LayerView view = layer_view(layer);
    view.projections = projections;
    float* sums = column_buffer(column_sums_, column_sums_wanted_, view);
    float* max = column_buffer(column_max_, column_max_wanted_, view);
    outputs_.reserve(args_.backend, args_.backend.activation_type(), block_.tokens * info_.q_heads * info_.head_dim);
    watch_.start();
    args_.backend.attend({.queries = projections.queries,
                          .cache = view.cache,
                          .segments = block_.on_device(),
                          .segment_count = sequences(),
                          .max_count = block_.max_count,
                          .output = outputs_.ref(),
                          .column_sums = sums,
                          .column_max = max,
                          .column_pitch = view.pitch,
                          .q_heads = info_.q_heads,
                          .scale = view.scale});
    watch_.stop(result_.attention_seconds);
    view.column_sums = sums;
    view.column_max = max;
    for (Observer* observer : args_.observers) observer->attended(view, std::as_const(outputs_).ref());
    if (args_.policy.scorer) {
      watch_.start();
      args_.policy.scorer->observe(view);
      watch_.stop(result_.observe_seconds);
    }
    if (any_due_) score(view);
    args_.source.absorb(layer, std::as_const(outputs_).ref());
    count_pairs(layer);
  }

  void score(const LayerView& view) {
    watch_.start();
    const size_t layer = static_cast<size_t>(view.layer);
    Scorer& scorer = *args_.policy.scorer;
    pitches_[layer] = view.pitch;
    scores_[layer].reserve(args_.backend, DType::f32, view.rows() * view.pitch);
    if (scorer.has_ties()) ties_[layer].reserve(args_.backend, DType::f32, view.rows() * view.pitch);
    scorer.score(view, {.scores = scores_[layer].ref().as<float>(),
                        .ties = scorer.has_ties() ? ties_[layer].ref().as<float>() : nullptr,
                        .pitch = view.pitch,
                        .rows_due = device_rows_due_.ref().as<uint8_t>(),
                        .sequences_due = sequences_due_,
                        .tokens_seen = done_,
                        .device_tokens_seen = device_done_.ref().as<int32_t>()});
    watch_.stop(result_.score_seconds);
  }

  // Sequences that keep equally many entries, and so protect the same.
  struct Cut {
    Protection protection;
    std::vector<uint8_t> sequences_due;
    Tensor rows_due;
  };

  // Protection depends on what is kept, so in a ragged batch each count gets its own selection.
  std::vector<Cut> cuts_of(const Step& step) {
    std::map<int32_t, std::vector<uint8_t>> due;
    for (size_t s = 0; s < done_.size(); ++s) {
      if (sequences_due_[s]) due.try_emplace(step.keep[s], done_.size(), uint8_t{0}).first->second[s] = 1;
    }
    std::vector<Cut> cuts;
    for (auto& [keep, sequences_due] : due) {
      std::vector<uint8_t> rows;
      for (const uint8_t one : sequences_due) rows.insert(rows.end(), static_cast<size_t>(info_.kv_heads), one);
      Cut cut{args_.policy.scorer->protects(keep, args_.interval), std::move(sequences_due),
              Tensor(args_.backend, DType::u8, cache_.rows())};
      cut.rows_due.upload(rows.data(), rows.size());
      cuts.push_back(std::move(cut));
    }
    return cuts;
  }

  void cut(const Step& step) {
    if (!any_due_) return;
    std::vector<int32_t> kept;
    for (const int32_t keep : step.keep) {
      kept.insert(kept.end(), static_cast<size_t>(info_.kv_heads), std::max(keep, 0));
    }
    device_kept_.reserve(args_.backend, DType::i32, cache_.rows());
    device_kept_.upload(kept.data(), kept.size() * sizeof(int32_t));
    const std::vector<Cut> cuts = cuts_of(step);
    for (int layer = 0; layer < info_.layers; ++layer) cut_layer(layer, kept, cuts);
    for (int s = 0; s < sequences(); ++s) {
      if (!sequences_due_[static_cast<size_t>(s)]) continue;
      ++result_.sequences[static_cast<size_t>(s)].events;
      measure_kept(s);
    }
  }

  void select(const LayerView& view, const Cut& cut) {
    const size_t index = static_cast<size_t>(view.layer);
    const bool has_ties = args_.policy.scorer->has_ties();
    args_.backend.select_top({.cache = view.cache,
                              .scores = scores_[index].ref().as<float>(),
                              .ties = has_ties ? ties_[index].ref().as<float>() : nullptr,
                              .pitch = view.pitch,
                              .counts = device_kept_.ref().as<int32_t>(),
                              .sinks = cut.protection.sinks,
                              .recent = cut.protection.recent,
                              .rows_due = cut.rows_due.ref().as<uint8_t>(),
                              .keep = keep_.ref().as<uint8_t>()});
  }

  void cut_layer(int layer, std::span<const int32_t> kept, std::span<const Cut> cuts) {
    const LayerView view = layer_view(layer);
    const size_t index = static_cast<size_t>(layer);
    KV_CHECK(view.pitch == pitches_[index]);
    keep_.reserve(args_.backend, DType::u8, view.rows() * view.pitch);
    watch_.start();
    for (const Cut& cut : cuts) select(view, cut);
    watch_.stop(result_.evict_seconds);
    check_kept(view, kept);
    for (Observer* observer : args_.observers) {
      for (const Cut& cut : cuts) {
        observer->evicting({.layer = view,
                            .sequences_due = cut.sequences_due,
                            .tokens_seen = done_,
                            .kept = kept,
                            .keep = keep_.ref().as<uint8_t>(),
                            .scores = scores_[index].ref().as<float>(),
                            .pitch = view.pitch,
                            .protection = cut.protection});
      }
    }
    watch_.start();
    cache_.evict(layer, keep_.ref().as<uint8_t>(), view.pitch, rows_due_, kept);
    watch_.stop(result_.evict_seconds);
  }

  // Users of other tools ran full attention for months without a word: what was asked is what must stay.
  void check_kept(const LayerView& view, std::span<const int32_t> kept) {
    std::vector<uint8_t> keep(static_cast<size_t>(view.rows() * view.pitch));
    keep_.download(keep.data(), keep.size());
    for (int row = 0; row < view.rows(); ++row) {
      if (!rows_due_[static_cast<size_t>(row)]) continue;
      const auto first = keep.begin() + row * view.pitch;
      const int32_t sum = std::accumulate(first, first + view.lengths[static_cast<size_t>(row)], int32_t{0});
      KV_CHECK(sum == kept[static_cast<size_t>(row)]);
    }
  }

  void count_pairs(int layer) {
    const auto lengths = cache_.lengths(layer);
    for (const Segment& segment : block_.segments) {
      for (int head = 0; head < info_.kv_heads; ++head) {
        const int64_t after = lengths[static_cast<size_t>(segment.sequence * info_.kv_heads + head)];
        const int64_t before = after - segment.count;
        result_.sequences[static_cast<size_t>(segment.sequence)].attended_pairs +=
            segment.count * before + static_cast<int64_t>(segment.count) * (segment.count + 1) / 2;
      }
    }
  }

  template <class Visit>
  void for_each_length(int sequence, Visit visit) const {
    for (int layer = 0; layer < info_.layers; ++layer) {
      for (int head = 0; head < info_.kv_heads; ++head) {
        visit(cache_.lengths(layer)[static_cast<size_t>(sequence * info_.kv_heads + head)]);
      }
    }
  }

  void note_peak() {
    for (int s = 0; s < sequences(); ++s) {
      int64_t entries = 0;
      for_each_length(s, [&](int32_t length) { entries += length; });
      auto& own = result_.sequences[static_cast<size_t>(s)];
      own.peak_entries = std::max(own.peak_entries, entries);
    }
  }

  void finish_result() {
    for (int s = 0; s < sequences(); ++s) {
      auto& own = result_.sequences[static_cast<size_t>(s)];
      for_each_length(s, [&](int32_t length) { own.end_entries += length; });
    }
    const size_t column_bytes = cache_.column_page_bytes();
    const size_t pages = static_cast<size_t>(cache_.peak_pages());
    result_.peak_kv_bytes = pages * (cache_.page_bytes() - column_bytes);
    result_.peak_column_bytes = pages * column_bytes;
    for (int s = 0; s < sequences(); ++s) {
      if (result_.sequences[static_cast<size_t>(s)].events == 0) measure_kept(s);
    }
  }

  // Measured on the cache, not taken from the request.
  void measure_kept(int s) {
    auto& own = result_.sequences[static_cast<size_t>(s)];
    own.kept_mean = 0;
    own.kept_max = 0;
    for_each_length(s, [&](int32_t length) {
      own.kept_mean += length;
      own.kept_max = std::max<int64_t>(own.kept_max, length);
    });
    own.kept_mean /= static_cast<double>(info_.layers * info_.kv_heads);
  }

 private:
  const ReplayArgs& args_;
  const SourceInfo& info_;
  PolicyNeeds needs_;
  Cache cache_;
  Stopwatch watch_;
  ReplayResult result_;
  Block block_;
  std::vector<int32_t> done_;  // tokens processed, per sequence
  std::vector<int32_t> numbers_;
  bool column_sums_wanted_ = false;
  bool column_max_wanted_ = false;
  std::vector<RecentQueries> recent_;
  Tensor column_sums_, column_max_, outputs_, keep_;
  std::vector<uint8_t> sequences_due_, rows_due_;
  bool any_due_ = false;
  Tensor device_rows_due_, device_done_, device_kept_;
  std::vector<Tensor> scores_, ties_;  // [layers] of [rows, pitch]
  std::vector<int64_t> pitches_;
};

}  // namespace

ReplayResult replay(const ReplayArgs& args) { return Run(args).go(); }

}  // namespace kv
