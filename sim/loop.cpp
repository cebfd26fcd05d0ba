#include "sim/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "kernels/advance.h"
#include "kernels/attend.h"
#include "kernels/error.h"
#include "kernels/keep_recent.h"
#include "kernels/random_normal.h"
#include "kernels/select_top.h"

namespace kv {

namespace {

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

void check_allocated(const AllocateArgs& args, std::span<const int32_t> counts) {
  for (int s = 0; s < args.sequences; ++s) {
    if (!args.is_due(s)) continue;
    int64_t total = 0;
    for (size_t layer = 0; layer < args.layers.size(); ++layer) {
      for (int head = 0; head < args.kv_heads; ++head) {
        const auto row = static_cast<size_t>(s * args.kv_heads + head);
        const int32_t count = counts[layer * static_cast<size_t>(args.rows()) + row];
        KV_CHECK(count >= 0 && count <= args.layers[layer].lengths[row]);
        total += count;
      }
    }
    KV_CHECK(total == args.total());
  }
}

// Fewer steps than this are not worth a recording, which costs about as much host time as a step's launches.
constexpr int kLeastRecorded = 4;

// Tokens of random keys and values at once; every piece and layer gets the same ones.
constexpr int32_t kFillTokens = 16384;

}  // namespace

// The newest `window` queries of every sequence of one layer, oldest first, kept across blocks.
class Loop::RecentQueries {
 public:
  RecentQueries(Backend& backend, int sequences, int window, int64_t query_elements)
      : backend_(backend),
        window_(window),
        query_elements_(query_elements),
        queries_(backend, backend.activation_type(), sequences * window * query_elements) {}

  void push(const Block& block, ConstRef queries) {
    backend_.keep_recent({.vectors = queries,
                          .segments = block.on_device(),
                          .segment_count = std::ssize(block.segments),
                          .window = window_,
                          .width = query_elements_,
                          .recent = queries_.ref()});
  }
  ConstRef view() const { return queries_.ref(); }

 private:
  Backend& backend_;
  int window_;
  int64_t query_elements_;
  Tensor queries_;
};

// Sequences that keep equally many entries, and so protect the same.
struct Loop::Cut {
  int kept = 0;  // entries a head, on average
  Protection protection;
  std::vector<uint8_t> sequences_due;
  Tensor rows_due;
};

Loop::Loop(const LoopArgs& args)
    : args_(args),
      info_(args.source.info()),
      needs_(args.policy.scorer ? args.policy.scorer->needs() : PolicyNeeds{}),
      cache_(args.backend, {.sequences = args.sequences,
                            .layers = info_.layers,
                            .kv_heads = info_.kv_heads,
                            .head_dim = info_.head_dim,
                            .column_width = needs_.entry_columns}),
      watch_(args.backend) {
  require(args.policy, needs_, args.source, args.baseline);
  result_.sequences.resize(static_cast<size_t>(sequences()));
  done_.assign(static_cast<size_t>(sequences()), 0);
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

Loop::~Loop() = default;

void Loop::begin(std::span<const std::span<const int32_t>> ids, std::span<const int32_t> max_resident) {
  KV_CHECK(std::ssize(ids) == sequences());
  numbers_.assign(args_.sample_numbers.begin(), args_.sample_numbers.end());
  if (numbers_.empty()) {
    numbers_.resize(ids.size());
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
  args_.policy.allocation->begin(shape, args_.policy.scorer_name);
  watch_.stop(result_.begin_seconds);
  for (Observer* observer : args_.observers) observer->begin(shape);
  args_.source.begin(ids);
  int64_t pages = 0;
  for (const int32_t entries : max_resident) pages += (int64_t{entries} + kPageTokens - 1) / kPageTokens;
  cache_.reserve(pages * info_.kv_heads * info_.layers);
}

void Loop::fill(int32_t entries) {
  const DType type = args_.backend.activation_type();
  const int64_t kv = int64_t{info_.kv_heads} * info_.head_dim, query = int64_t{info_.q_heads} * info_.head_dim;
  const int32_t piece = std::max<int32_t>(1, kFillTokens / sequences());
  const int64_t tokens = int64_t{std::min(piece, entries)} * sequences();
  Tensor keys(args_.backend, type, tokens * kv), values(args_.backend, type, tokens * kv), queries;
  if (!recent_.empty()) queries = Tensor(args_.backend, type, tokens * query);
  uint64_t stream = args_.seed;
  for (Tensor* tensor : {&keys, &values, &queries}) {
    args_.backend.random_normal({.output = tensor->ref(), .count = tensor->elements(), .seed = stream++});
  }
  for (int32_t made = 0; made < entries; made += piece) {
    const std::vector<int32_t> counts(static_cast<size_t>(sequences()), std::min(piece, entries - made));
    start_block(counts, 1);
    for (int layer = 0; layer < info_.layers; ++layer) {
      cache_.append(layer, block_, keys.ref(), values.ref());
      if (!recent_.empty()) recent_[static_cast<size_t>(layer)].push(block_, queries.ref());
    }
  }
  note_peak();
}

void Loop::step(const Step& step) {
  start_block(step.counts, 1);
  mark_due(step);
  TokenLosses losses;
  run_block(losses);
  count();
  cut(step);
  tell(losses);
}

void Loop::start_block(std::span<const int32_t> counts, int steps) {
  block_ = make_block(args_.backend, done_, counts);
  for (size_t s = 0; s < done_.size(); ++s) done_[s] += counts[s];
  cache_.grow(block_.segments, steps);
}

void Loop::run_block(TokenLosses& losses) {
  args_.source.start(block_);
  for (int layer = 0; layer < info_.layers; ++layer) run_layer(layer);
  args_.source.finish(losses);
}

// What the host notes of a block that has run, before any cut.
void Loop::count() {
  count_pairs();
  note_peak();
}

void Loop::tell(const TokenLosses& losses) {
  for (Observer* observer : args_.observers) observer->block_done(block_, losses);
}

bool Loop::is_recordable() const { return args_.observers.empty() && !needs_.host_steps && !args_.time_phases; }

// The next of the blocks that start_block() made room for, as the host sees it; the backend's part is `advance`.
void Loop::note_next() {
  for (Segment& segment : block_.segments) {
    segment.first_position += segment.count;
    done_[static_cast<size_t>(segment.sequence)] += segment.count;
  }
  cache_.advance(block_.segments);
}

void Loop::run_next() {
  args_.backend.advance({.segments = block_.on_device(),
                         .segment_count = std::ssize(block_.segments),
                         .positions = block_.device_positions.ref().as<int32_t>(),
                         .lengths = cache_.device_lengths(),
                         .layers = info_.layers,
                         .rows = cache_.rows(),
                         .kv_heads = info_.kv_heads});
  TokenLosses losses;
  run_block(losses);
}

void Loop::decode(std::span<const int32_t> active, int steps, int pause_every, const Pause& pause) {
  KV_CHECK(steps > 0 && pause_every > 0);
  any_due_ = false;
  start_block(active, steps);
  TokenLosses losses;
  run_block(losses);
  count();
  tell(losses);
  // The first step has left every buffer as large as the others need it.
  std::unique_ptr<Recording> recording;
  if (steps > kLeastRecorded && is_recordable()) recording = args_.backend.record([this] { run_next(); });
  if (!pause(1, false)) return;
  for (int made = 1; made < steps;) {
    const int some = std::min(pause_every, steps - made);
    for (int i = 0; i < some; ++i) {
      note_next();
      recording ? recording->run() : run_next();
      count();
      tell(losses);
    }
    if (!pause(some, recording != nullptr)) return;
    made += some;
  }
}

// A sequence is due when the event would really remove something.
void Loop::mark_due(const Step& step) {
  sequences_due_.assign(done_.size(), 0);
  any_due_ = false;
  if (!args_.policy.scorer) return;
  for (size_t s = 0; s < done_.size(); ++s) {
    if (step.keep[s] < 0) continue;
    int64_t resident = 0;
    for_each_length(static_cast<int>(s), [&](int32_t length) { resident += length; });
    sequences_due_[s] = resident > int64_t{step.keep[s]} * info_.layers * info_.kv_heads ? 1 : 0;
    any_due_ = any_due_ || sequences_due_[s];
  }
  if (!any_due_) return;
  rows_due_.clear();
  for (const uint8_t due : sequences_due_) rows_due_.insert(rows_due_.end(), static_cast<size_t>(info_.kv_heads), due);
  device_rows_due_.reserve(args_.backend, DType::u8, cache_.rows());
  device_rows_due_.upload(rows_due_.data(), rows_due_.size());
  device_done_.reserve(args_.backend, DType::i32, static_cast<int64_t>(done_.size()));
  device_done_.upload(done_.data(), done_.size() * sizeof(int32_t));
  scores_.resize(static_cast<size_t>(info_.layers));
  ties_.resize(static_cast<size_t>(info_.layers));
  pitches_.resize(static_cast<size_t>(info_.layers));
}

LayerView Loop::layer_view(int layer) {
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

float* Loop::column_buffer(Tensor& tensor, bool wanted, const LayerView& view) {
  if (!wanted) return nullptr;
  tensor.reserve(args_.backend, DType::f32, view.rows() * view.group() * view.pitch);
  return tensor.ref().as<float>();
}

void Loop::run_layer(int layer) {
  const Projections projections = args_.source.project(layer);
  cache_.append(layer, block_, projections.keys, projections.values);
  if (!recent_.empty()) recent_[static_cast<size_t>(layer)].push(block_, projections.queries);
  LayerView view = layer_view(layer);
  view.projections = projections;
  float* sums = column_buffer(column_sums_, column_sums_wanted_, view);
  float* max = column_buffer(column_max_, column_max_wanted_, view);
  outputs_.reserve(args_.backend, args_.backend.activation_type(), block_.tokens * info_.q_heads * info_.head_dim);
  if (args_.time_phases) watch_.start();
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
  if (args_.time_phases) watch_.stop(result_.attention_seconds);
  view.column_sums = sums;
  view.column_max = max;
  for (Observer* observer : args_.observers) observer->attended(view, std::as_const(outputs_).ref());
  if (args_.policy.scorer) {
    if (args_.time_phases) watch_.start();
    args_.policy.scorer->observe(view);
    if (args_.time_phases) watch_.stop(result_.observe_seconds);
  }
  if (any_due_) score(view);
  args_.source.absorb(layer, std::as_const(outputs_).ref());
}

void Loop::score(const LayerView& view) {
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

// Protection depends on what is kept, so in a ragged batch each count gets its own selection.
std::vector<Loop::Cut> Loop::cuts_of(const Step& step) {
  std::map<int32_t, std::vector<uint8_t>> due;
  for (size_t s = 0; s < done_.size(); ++s) {
    if (sequences_due_[s]) due.try_emplace(step.keep[s], done_.size(), uint8_t{0}).first->second[s] = 1;
  }
  std::vector<Cut> cuts;
  for (auto& [keep, sequences_due] : due) {
    std::vector<uint8_t> rows;
    for (const uint8_t one : sequences_due) rows.insert(rows.end(), static_cast<size_t>(info_.kv_heads), one);
    Cut cut{keep, args_.policy.scorer->protects(keep, args_.interval), std::move(sequences_due),
            Tensor(args_.backend, DType::u8, cache_.rows())};
    cut.rows_due.upload(rows.data(), rows.size());
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

// Counts [layers, rows]; 0 for sequences that are not due.
std::vector<int32_t> Loop::allocate(std::span<const Cut> cuts) {
  watch_.start();
  std::vector<ScoredLayer> layers;
  for (int layer = 0; layer < info_.layers; ++layer) {
    const auto index = static_cast<size_t>(layer);
    layers.push_back({.cache = cache_.view(layer),
                      .lengths = cache_.lengths(layer),
                      .scores = scores_[index].ref().as<float>(),
                      .ties = args_.policy.scorer->has_ties() ? ties_[index].ref().as<float>() : nullptr,
                      .pitch = pitches_[index]});
  }
  std::vector<int32_t> counts(static_cast<size_t>(info_.layers * cache_.rows()), 0);
  for (const Cut& cut : cuts) {
    const AllocateArgs args{.backend = args_.backend,
                            .sequences = sequences(),
                            .kv_heads = info_.kv_heads,
                            .kept = cut.kept,
                            .protection = cut.protection,
                            .sequences_due = cut.sequences_due,
                            .rows_due = cut.rows_due.ref().as<uint8_t>(),
                            .tokens_seen = done_,
                            .layers = layers};
    args_.policy.allocation->allocate(args, counts);
    check_allocated(args, counts);
  }
  watch_.stop(result_.evict_seconds);
  return counts;
}

void Loop::cut(const Step& step) {
  if (!any_due_) return;
  const std::vector<Cut> cuts = cuts_of(step);
  const std::vector<int32_t> kept = allocate(cuts);
  device_kept_.reserve(args_.backend, DType::i32, std::ssize(kept));
  device_kept_.upload(kept.data(), kept.size() * sizeof(int32_t));
  const auto rows = static_cast<size_t>(cache_.rows());
  for (int layer = 0; layer < info_.layers; ++layer) {
    cut_layer(layer, std::span(kept).subspan(static_cast<size_t>(layer) * rows, rows), cuts);
  }
  watch_.start();
  cache_.publish();
  watch_.stop(result_.evict_seconds);
  for (int s = 0; s < sequences(); ++s) {
    if (!sequences_due_[static_cast<size_t>(s)]) continue;
    ++result_.sequences[static_cast<size_t>(s)].events;
    measure_kept(s);
  }
}

void Loop::select(const LayerView& view, const Cut& cut) {
  const size_t index = static_cast<size_t>(view.layer);
  const bool has_ties = args_.policy.scorer->has_ties();
  args_.backend.select_top({.cache = view.cache,
                            .scores = scores_[index].ref().as<float>(),
                            .ties = has_ties ? ties_[index].ref().as<float>() : nullptr,
                            .pitch = view.pitch,
                            .counts = device_kept_.ref().as<int32_t>() + view.layer * view.rows(),
                            .sinks = cut.protection.sinks,
                            .recent = cut.protection.recent,
                            .rows_due = cut.rows_due.ref().as<uint8_t>(),
                            .keep = keep_.ref().as<uint8_t>()});
}

void Loop::cut_layer(int layer, std::span<const int32_t> kept, std::span<const Cut> cuts) {
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
void Loop::check_kept(const LayerView& view, std::span<const int32_t> kept) {
  std::vector<uint8_t> keep(static_cast<size_t>(view.rows() * view.pitch));
  keep_.download(keep.data(), keep.size());
  for (int row = 0; row < view.rows(); ++row) {
    if (!rows_due_[static_cast<size_t>(row)]) continue;
    const auto first = keep.begin() + row * view.pitch;
    const int32_t sum = std::accumulate(first, first + view.lengths[static_cast<size_t>(row)], int32_t{0});
    KV_CHECK(sum == kept[static_cast<size_t>(row)]);
  }
}

template <class Visit>
void Loop::for_each_length(int sequence, Visit visit) const {
  for (int layer = 0; layer < info_.layers; ++layer) {
    for (int head = 0; head < info_.kv_heads; ++head) {
      visit(cache_.lengths(layer)[static_cast<size_t>(sequence * info_.kv_heads + head)]);
    }
  }
}

void Loop::count_pairs() {
  for (const Segment& segment : block_.segments) {
    int64_t& pairs = result_.sequences[static_cast<size_t>(segment.sequence)].attended_pairs;
    for_each_length(segment.sequence, [&](int64_t after) {
      const int64_t before = after - segment.count;
      pairs += segment.count * before + static_cast<int64_t>(segment.count) * (segment.count + 1) / 2;
    });
  }
}

void Loop::note_peak() {
  for (int s = 0; s < sequences(); ++s) {
    int64_t entries = 0;
    for_each_length(s, [&](int32_t length) { entries += length; });
    auto& own = result_.sequences[static_cast<size_t>(s)];
    own.peak_entries = std::max(own.peak_entries, entries);
  }
}

ReplayResult Loop::finish() {
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
  return std::move(result_);
}

// Measured on the cache, not taken from the request.
void Loop::measure_kept(int s) {
  auto& own = result_.sequences[static_cast<size_t>(s)];
  own.kept_mean = 0;
  own.kept_max = 0;
  for_each_length(s, [&](int32_t length) {
    own.kept_mean += length;
    own.kept_max = std::max<int64_t>(own.kept_max, length);
  });
  own.kept_mean /= static_cast<double>(info_.layers * info_.kv_heads);
}

}  // namespace kv
