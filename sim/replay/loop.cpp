#include "sim/replay/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/advance.h"
#include "kernels/attend.h"
#include "kernels/error.h"
#include "kernels/random_normal.h"
#include "sim/policy/layer_view.h"
#include "sim/replay/cut.h"

namespace kv {

namespace {

void require(const Policy& policy, const Source& source, const Baseline* baseline) {
  const SourceInfo& info = source.info();
  const PolicyNeeds needs = policy.scorer ? policy.scorer->needs() : PolicyNeeds{};
  if (policy.oracle && !baseline) {
    throw UserError(fmt::format("{}: needs the full-cache pass (it is an oracle), which {} does not offer here",
                                policy.oracle_name(), info.name));
  }
  if (needs.pre_rope_queries && !info.has_pre_rope_queries) {
    throw UserError(fmt::format("{}: needs pre-RoPE queries, which {} lacks", policy.name, info.name));
  }
}

// Fewer steps than this are not worth a recording, which costs about as much host time as a step's launches.
constexpr int kLeastRecorded = 4;

// Tokens of random keys and values at once; every piece and layer gets the same ones.
constexpr int32_t kFillTokens = 16384;

}  // namespace

std::vector<Ranker> rankers_of(const LoopArgs& args) {
  std::vector<Ranker> rankers;
  int first_column = 0;
  for (Policy* policy : args.policies) {
    if (!policy->scorer) continue;
    rankers.emplace_back(args.backend, args.source.info(), *policy->scorer, args.sequences, first_column);
    first_column += rankers.back().needs().entry_columns;
  }
  return rankers;
}

CacheShape cache_shape(const LoopArgs& args, std::span<const Ranker> rankers) {
  const SourceInfo& info = args.source.info();
  CacheShape shape{
      .sequences = args.sequences, .layers = info.layers, .kv_heads = info.kv_heads, .head_dim = info.head_dim};
  for (const Ranker& ranker : rankers) shape.column_width += ranker.needs().entry_columns;
  return shape;
}

Loop::Loop(const LoopArgs& args)
    : args_(args),
      info_(args.source.info()),
      rankers_(rankers_of(args)),
      cache_(args.backend, cache_shape(args, rankers_)),
      watch_(args.backend),
      due_(args.backend, info_.kv_heads) {
  for (const Policy* policy : args.policies) require(*policy, args.source, args.baseline);
  score_seconds_.resize(rankers_.size());
  result_.sequences.resize(static_cast<size_t>(sequences()));
  done_.assign(static_cast<size_t>(sequences()), 0);
  for (const Observer* observer : args.observers) {
    column_sums_wanted_ |= observer->observer_needs().column_sums;
    column_max_wanted_ |= observer->observer_needs().column_max;
  }
  for (const Ranker& ranker : rankers_) column_sums_wanted_ |= ranker.needs().column_sums;
}

Loop::~Loop() = default;

BatchShape Loop::batch_shape() {
  numbers_.assign(args_.sample_numbers.begin(), args_.sample_numbers.end());
  if (numbers_.empty()) {
    numbers_.resize(static_cast<size_t>(sequences()));
    std::iota(numbers_.begin(), numbers_.end(), 0);
  }
  return {.backend = &args_.backend,
          .source = &info_,
          .sequences = sequences(),
          .budget = args_.budget,
          .interval = args_.interval,
          .seed = args_.seed,
          .sample_numbers = numbers_};
}

void Loop::begin(std::span<const std::span<const int32_t>> ids, int64_t pages) {
  KV_CHECK(std::ssize(ids) == sequences());
  BatchShape shape = batch_shape();
  watch_.start();
  for (Policy* policy : args_.policies) {
    shape.future = policy->oracle ? args_.baseline : nullptr;
    if (policy->scorer) policy->scorer->begin(shape);
    if (!args_.only_ranks) policy->allocation->begin(shape);
  }
  watch_.stop(result_.begin_seconds);
  for (Observer* observer : args_.observers) observer->begin(shape);
  args_.source.begin(ids);
  cache_.reserve(pages);
}

void Loop::resume(std::span<const std::span<const int32_t>> ids, LoopState state) {
  KV_CHECK(std::ssize(ids) == sequences() && state.done.size() == ids.size() && rankers_.empty());
  const BatchShape shape = batch_shape();
  for (Observer* observer : args_.observers) observer->begin(shape);
  args_.source.begin(ids);
  cache_ = std::move(state.cache);
  done_ = std::move(state.done);
  for (int s = 0; s < sequences(); ++s) {
    result_.sequences[static_cast<size_t>(s)].events = state.events[static_cast<size_t>(s)];
    if (state.events[static_cast<size_t>(s)] > 0) measure_kept(s);
  }
}

void Loop::fill(int32_t entries) {
  const DType type = args_.backend.activation_type();
  const int64_t kv = int64_t{info_.kv_heads} * info_.head_dim, query = int64_t{info_.q_heads} * info_.head_dim;
  const int32_t piece = std::max<int32_t>(1, kFillTokens / sequences());
  const int64_t tokens = int64_t{std::min(piece, entries)} * sequences();
  Tensor keys(args_.backend, type, tokens * kv), values(args_.backend, type, tokens * kv), queries;
  queries = Tensor(args_.backend, type, tokens * query);
  uint64_t stream = args_.seed;
  for (Tensor* tensor : {&keys, &values, &queries}) {
    args_.backend.random_normal({.output = tensor->ref(), .count = tensor->elements(), .seed = stream++});
  }
  for (int32_t made = 0; made < entries; made += piece) {
    const std::vector<int32_t> counts(static_cast<size_t>(sequences()), std::min(piece, entries - made));
    start_block(counts, 1);
    for (int layer = 0; layer < info_.layers; ++layer) {
      cache_.append(layer, block_, keys.ref(), values.ref());
      for (Ranker& ranker : rankers_) ranker.push(layer, block_, queries.ref());
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

void Loop::rank(std::span<const int32_t> counts) {
  start_block(counts, 1);
  std::vector<uint8_t> due;
  for (const int32_t tokens : counts) due.push_back(tokens > 0 ? 1 : 0);
  due_.set(due, done_);
  TokenLosses losses;
  run_block(losses);
  count();
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

bool Loop::is_recordable() const {
  const auto on_host = [](const Ranker& ranker) { return ranker.needs().host_steps; };
  return args_.observers.empty() && !args_.time_phases && std::none_of(rankers_.begin(), rankers_.end(), on_host);
}

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
  due_.set_none();
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
  due_.set_none();
  const auto stays_whole = [](int32_t keep) { return keep < 0; };
  if (rankers_.empty() || std::all_of(step.keep.begin(), step.keep.end(), stays_whole)) return;
  watch_.start();
  std::vector<uint8_t> due(done_.size(), 0);
  for (size_t s = 0; s < done_.size(); ++s) {
    if (step.keep[s] < 0) continue;
    int64_t resident = 0;
    for_each_length(static_cast<int>(s), [&](int32_t length) { resident += length; });
    due[s] = resident > int64_t{step.keep[s]} * info_.layers * info_.kv_heads ? 1 : 0;
  }
  due_.set(due, done_);
  watch_.stop(result_.evict_seconds);
}

float* Loop::column_buffer(Tensor& tensor, bool wanted, const LayerView& view) {
  if (!wanted) return nullptr;
  tensor.reserve(args_.backend, DType::f32, view.rows() * view.group() * view.pitch);
  return tensor.ref().as<float>();
}

void Loop::run_layer(int layer) {
  const Projections projections = args_.source.project(layer);
  cache_.append(layer, block_, projections.keys, projections.values);
  for (Ranker& ranker : rankers_) ranker.push(layer, block_, projections.queries);
  LayerView view = layer_view(args_.backend, info_, cache_, layer);
  view.segments = block_.segments;
  view.device_segments = block_.on_device();
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
  for (size_t r = 0; r < rankers_.size(); ++r) {
    if (args_.time_phases) watch_.start();
    rankers_[r].observe(view);
    if (args_.time_phases) watch_.stop(result_.observe_seconds);
    if (!due_.any()) continue;
    watch_.start();
    rankers_[r].score(view, due_);
    watch_.stop(score_seconds_[r]);
  }
  args_.source.absorb(layer, std::as_const(outputs_).ref());
}

void Loop::cut(const Step& step) {
  if (!due_.any()) return;
  KV_CHECK(rankers_.size() == 1 && args_.policies.size() == 1);
  kv::cut({.backend = args_.backend,
           .info = info_,
           .cache = cache_,
           .policy = *args_.policies[0],
           .ranker = rankers_[0],
           .due = due_,
           .keep = step.keep,
           .interval = args_.interval,
           .observers = args_.observers},
          result_.evict_seconds);
  watch_.start();
  for (int s = 0; s < sequences(); ++s) {
    if (!due_.sequences()[static_cast<size_t>(s)]) continue;
    ++result_.sequences[static_cast<size_t>(s)].events;
    measure_kept(s);
  }
  watch_.stop(result_.evict_seconds);
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

double Loop::score_seconds() const { return std::accumulate(score_seconds_.begin(), score_seconds_.end(), 0.0); }

ReplayResult Loop::finish() {
  result_.score_seconds = score_seconds();
  for (int s = 0; s < sequences(); ++s) {
    auto& own = result_.sequences[static_cast<size_t>(s)];
    for_each_length(s, [&](int32_t length) { own.end_entries += length; });
  }
  const size_t pages = static_cast<size_t>(cache_.peak_pages());
  result_.peak_kv_bytes = pages * cache_.kv_page_bytes();
  result_.peak_column_bytes = pages * cache_.column_page_bytes();
  result_.end_kv_bytes = static_cast<size_t>(cache_.used_pages()) * cache_.kv_page_bytes();
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
