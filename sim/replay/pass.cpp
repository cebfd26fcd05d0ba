#include "sim/replay/pass.h"

#include <algorithm>
#include <utility>

#include "kernels/advance.h"
#include "kernels/attend.h"
#include "kernels/seen_pairs.h"

namespace kv {

namespace {

std::vector<Ranker> rankers_of(const PassArgs& args) {
  std::vector<Ranker> rankers;
  int first_column = 0;
  const auto add = [&](Policy& policy) {
    if (!policy.scorer) return;
    rankers.emplace_back(args.backend, args.source.info(), policy, args.sequences, args.interval, first_column);
    first_column += rankers.back().needs().columns(args.source.info().group());
  };
  add(args.policy);
  for (Policy* onlooker : args.onlookers) add(*onlooker);
  return rankers;
}

CacheShape cache_shape(const PassArgs& args, std::span<const Ranker> rankers) {
  const SourceInfo& info = args.source.info();
  CacheShape shape{.sequences = args.sequences,
                   .layers = info.layers,
                   .kv_heads = info.kv_heads,
                   .head_dim = info.head_dim,
                   .page_bounds = args.policy.selection->needs().page_bounds,
                   .window = args.policy.admission->window()};
  for (const Ranker& ranker : rankers) shape.column_width += ranker.needs().columns(info.group());
  return shape;
}

}  // namespace

Pass::Pass(const PassArgs& args)
    : args_(args),
      info_(args.source.info()),
      rankers_(rankers_of(args)),
      cache_(args.backend, cache_shape(args, rankers_)),
      done_(static_cast<size_t>(args.sequences), 0),
      due_(args.backend, info_.kv_heads),
      timer_(args.backend),
      observe_seconds_(rankers_.size(), 0),
      score_seconds_(rankers_.size(), 0) {
  for (const Observer* observer : args.observers) {
    column_sums_observed_ |= observer->observer_needs().column_sums;
    column_max_wanted_ |= observer->observer_needs().column_max;
  }
}

void Pass::resume(Cache cache, std::vector<int32_t> done) {
  KV_CHECK(rankers_.empty() && done.size() == done_.size());
  cache_ = std::move(cache);
  done_ = std::move(done);
}

void Pass::start(std::span<const int32_t> counts, int steps, bool decodes) {
  decodes_ = decodes;
  waits_for_admission_ = false;
  recorded_segments_.clear();
  block_ = make_block(args_.backend, done_, counts);
  for (size_t s = 0; s < done_.size(); ++s) done_[s] += counts[s];
  cache_.grow(block_.segments, steps);
  // Asked here, not at every step: what is recorded after this goes on with it, and a scorer that stops reading sums
  // may be given them.
  column_sums_wanted_ = column_sums_observed_;
  for (const Ranker& ranker : rankers_) column_sums_wanted_ |= ranker.reads_column_sums();
}

void Pass::run(TokenLosses& losses) {
  args_.source.start(block_);
  waits_for_admission_ = may_wait_for_admission();
  for (int layer = 0; layer < info_.layers; ++layer) run_layer(layer);
  if (waits_for_admission_) {
    LayerView view = view_of(0, first_layer_);
    view.layers = info_.layers;
    cache_.write_expiries(block_, admit(view));
  }
  args_.source.finish(losses);
}

void Pass::note_next() {
  for (Segment& segment : block_.segments) {
    segment.first_position += segment.count;
    done_[static_cast<size_t>(segment.sequence)] += segment.count;
  }
  cache_.advance(block_.segments);
}

void Pass::run_next() {
  args_.backend.advance({.segments = block_.on_device(),
                         .segment_count = std::ssize(block_.segments),
                         .positions = block_.device_positions.ref().as<int32_t>(),
                         .lengths = cache_.device_lengths(),
                         .layers = info_.layers,
                         .rows = cache_.rows(),
                         .kv_heads = info_.kv_heads});
  TokenLosses losses;
  run(losses);
}

std::unique_ptr<Recording> Pass::record_next() {
  recorded_segments_ = block_.segments;
  return args_.backend.record([this] { run_next(); });
}

bool Pass::is_recordable() const {
  bool on_host = !args_.observers.empty() || args_.time_phases;
  for (const PolicySlot& place : args_.policy.slots()) on_host |= place.slot.needs().host_steps;
  for (const Ranker& ranker : rankers_) on_host |= ranker.needs().host_steps;  // those of onlookers, too
  return !on_host;
}

// Everything that happens to a layer of a block, and the only place where it does.
void Pass::run_layer(int layer) {
  const Projections projections = args_.source.project(layer);
  if (layer == 0) first_layer_ = projections;
  take_up(layer, projections);
  LayerView view = view_of(layer, projections);
  if (admits() && !waits_for_admission_) view.expires = std::as_const(expires_).ref().as<int32_t>();
  attend(view);
  for (Observer* observer : args_.observers) observer->attended(view, std::as_const(outputs_).ref());
  observe(view);
  args_.source.absorb(layer, std::as_const(outputs_).ref());
}

bool Pass::may_wait_for_admission() const {
  return decodes_ && admits() && block_.max_count <= args_.policy.admission->window() && is_recordable() &&
         args_.source.keeps_keys();
}

const int32_t* Pass::admit(const LayerView& view) {
  expires_.reserve(args_.backend, DType::kI32, view.layers * block_.tokens * info_.kv_heads);
  args_.policy.admission->admit(view, expires_.ref().as<int32_t>());
  return std::as_const(expires_).ref().as<int32_t>();
}

void Pass::take_up(int layer, const Projections& projections) {
  const bool is_asked = admits() && !waits_for_admission_;
  const bool is_timed = is_asked && !decodes_;
  if (is_timed) timer_.start();
  const int32_t* expires = is_asked ? admit(view_of(layer, projections)) : nullptr;
  if (is_timed) timer_.stop(admission_seconds_);
  cache_.append(layer, block_, projections.keys, projections.values, expires);
  for (Ranker& ranker : rankers_) ranker.push(layer, block_, projections.queries);
}

// The host does not know them where entries expire or are passed over.
void Pass::count_pairs(int layer, const PagedView& read) {
  const int64_t rows = cache_.rows() * info_.group();
  if (!seen_pairs_) {
    seen_pairs_ = Tensor(args_.backend, DType::kI32, 2 * 2 * info_.layers * rows);
    seen_pairs_.fill_zero();
  }
  const int64_t part = read.rows == cache_.rows() ? 0 : info_.layers;
  args_.backend.seen_pairs({.cache = read,
                            .segments = block_.on_device(),
                            .segment_count = std::ssize(block_.segments),
                            .pairs = static_cast<int64_t*>(seen_pairs_.ref().data) + (part + layer) * rows});
}

// Where each query head reads for itself, a KV head's pairs are the mean of its group's.
std::vector<int64_t> Pass::seen_pairs() const {
  if (!seen_pairs_) return {};
  const int64_t rows = cache_.rows() * info_.group(), half = info_.layers * rows;
  std::vector<int64_t> all(static_cast<size_t>(2 * half));
  seen_pairs_.download(all.data(), all.size() * sizeof(int64_t));
  std::vector<int64_t> sequences(done_.size(), 0), by_query_head(done_.size(), 0);
  for (int64_t i = 0; i < half; ++i) {
    const int64_t row = i % rows;
    if (row < cache_.rows()) sequences[static_cast<size_t>(row / info_.kv_heads)] += all[static_cast<size_t>(i)];
    by_query_head[static_cast<size_t>(row / info_.q_heads)] += all[static_cast<size_t>(half + i)];
  }
  for (size_t s = 0; s < sequences.size(); ++s) sequences[s] += by_query_head[s] / info_.group();
  return sequences;
}

LayerView Pass::view_of(int layer, const Projections& projections) {
  LayerView view = layer_view(args_.backend, info_, cache_, layer);
  view.segments = recorded_segments_.empty() ? block_.segments : recorded_segments_;
  view.device_segments = block_.on_device();
  view.projections = projections;
  return view;
}

Slots<float> Pass::column_buffer(Tensor& tensor, bool wanted, const LayerView& view) {
  if (!wanted) return {};
  return tensor.reserve_slots<float>(args_.backend, view.rows() * view.group(), view.pitch);
}

// Late queries are of blocks of several tokens.
bool Pass::wants_log_sums() const {
  return std::ranges::any_of(rankers_, [&](const Ranker& ranker) {
    return ranker.needs().log_sums || (ranker.needs().late_queries > 0 && block_.max_count > 1);
  });
}

// Leaves the heads' outputs in outputs_, and in the view the column statistics that somebody wants. Those are of all
// that is there, by which every scorer judges: where a selection shows a step a part of it, all is attended to before.
void Pass::attend(LayerView& view) {
  PagedView read = view.cache;
  const bool selects = args_.policy.selection->selects();
  KV_CHECK(!selects || !(column_sums_observed_ || column_max_wanted_));  // observers ask for what was seen
  if (decodes_) args_.policy.selection->select(view, read);
  if (args_.count_pairs && (admits() || selects)) count_pairs(view.layer, read);
  outputs_.reserve(args_.backend, args_.backend.activation_type(), block_.tokens * info_.q_heads * info_.head_dim);
  if (wants_log_sums()) log_sums_.reserve(args_.backend, DType::kF32, block_.tokens * info_.q_heads);
  AttendArgs attention{.queries = view.projections.queries,
                       .cache = view.cache,
                       .segments = block_.on_device(),
                       .segment_count = args_.sequences,
                       .max_count = block_.max_count,
                       .output = outputs_.ref(),
                       .column_sums = column_buffer(column_sums_, column_sums_wanted_, view),
                       .column_max = column_buffer(column_max_, column_max_wanted_, view),
                       .log_sums = wants_log_sums() ? log_sums_.ref().as<float>() : nullptr,
                       .q_heads = info_.q_heads,
                       .scale = view.scale};
  view.column_sums = attention.column_sums;
  view.column_max = attention.column_max;
  view.log_sums = attention.log_sums;
  if (args_.time_phases) timer_.start();
  const bool reads_all = read.page_table == view.cache.page_table && read.lengths == view.cache.lengths;
  if (reads_all || attention.column_sums || attention.log_sums) args_.backend.attend(attention);
  if (!reads_all) {
    attention.cache = read;
    attention.column_sums = {};
    attention.log_sums = nullptr;
    args_.backend.attend(attention);
  }
  if (args_.time_phases) timer_.stop(attention_seconds_);
}

void Pass::observe(const LayerView& view) {
  for (size_t r = 0; r < rankers_.size(); ++r) {
    if (args_.time_phases) timer_.start();
    rankers_[r].observe(view);
    if (args_.time_phases) timer_.stop(observe_seconds_[r]);
  }
}

void Pass::sweep(std::span<const uint8_t> sequences) {
  if (!decodes_) timer_.start();
  cache_.sweep(block_, sequences, [&](int layer, Slots<const uint8_t> keep) {
    if (args_.observers.empty()) return;
    const LayerView view = layer_view(args_.backend, info_, cache_, layer);
    for (Observer* observer : args_.observers) observer->sweeping(view, keep);
  });
  if (!decodes_) timer_.stop(admission_seconds_);
}

// Events are never recorded, so scoring is timed always.
void Pass::score() {
  if (!due_.any()) return;
  for (int layer = 0; layer < info_.layers; ++layer) {
    const LayerView view = view_of(layer, {});
    for (size_t r = 0; r < rankers_.size(); ++r) {
      timer_.start();
      rankers_[r].score(view, due_);
      timer_.stop(score_seconds_[r]);
    }
  }
}

}  // namespace kv
