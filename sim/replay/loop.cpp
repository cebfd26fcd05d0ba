#include "sim/replay/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/error.h"
#include "kernels/random_normal.h"
#include "sim/replay/cut.h"
#include "sim/replay/fullness.h"

namespace kv {

namespace {

void require(const Policy& policy, const Source& source, const Baseline* baseline, int interval) {
  const SourceInfo& info = source.info();
  if (policy.oracle() && !baseline) {
    throw UserError(fmt::format("{}: needs the full-cache pass (it is an oracle), which {} does not offer here",
                                policy.oracle_name(), info.name));
  }
  check_admission(policy, interval);
  for (const PolicySlot& place : policy.slots()) {
    const Needs needs = place.slot.needs();
    const auto refuse = [&](const char* what) {
      throw UserError(fmt::format("{}: needs {}, which {} lacks", place.name, what, info.name));
    };
    if (needs.pre_rope_queries && !info.has_pre_rope_queries) refuse("pre-RoPE queries");
    if (needs.pre_rope_keys && !info.has_pre_rope_keys) refuse("pre-RoPE keys");
    if (needs.inputs && !info.has_inputs) refuse("layer inputs");
  }
}

void note_wanted(const Policy& policy, Source::Wanted& wanted) {
  for (const PolicySlot& place : policy.slots()) {
    const Needs needs = place.slot.needs();
    wanted.pre_rope_queries |= needs.pre_rope_queries;
    wanted.pre_rope_keys |= needs.pre_rope_keys;
    wanted.inputs |= needs.inputs;
  }
}

// Fewer steps than this are not worth a recording, which costs about as much host time as a step's launches.
constexpr int kLeastRecorded = 4;

// Tokens of random keys and values at once; every piece and layer gets the same ones.
constexpr int32_t kFillTokens = 16384, kFillTokensSwept = 2048;

}  // namespace

Loop::Loop(const LoopArgs& args)
    : args_(args),
      pass_({.backend = args.backend,
             .source = args.source,
             .policy = args.policy,
             .onlookers = args.onlookers,
             .observers = args.observers,
             .count_pairs = args.count_pairs,
             .sequences = args.sequences,
             .interval = args.interval,
             .time_phases = args.time_phases}),
      watch_(args.backend),
      accounts_(args.sequences) {
  require(args.policy, args.source, args.baseline, args.interval);
  for (const Policy* onlooker : args.onlookers) {
    KV_CHECK(onlooker->scorer);
    require(*onlooker, args.source, args.baseline, args.interval);
  }
}

BatchShape Loop::batch_shape() {
  numbers_.assign(args_.sample_numbers.begin(), args_.sample_numbers.end());
  if (numbers_.empty()) {
    numbers_.resize(static_cast<size_t>(args_.sequences));
    std::iota(numbers_.begin(), numbers_.end(), 0);
  }
  return {.backend = &args_.backend,
          .source = &args_.source.info(),
          .sequences = args_.sequences,
          .budget = args_.budget,
          .interval = args_.interval,
          .filled = args_.filled,
          .seed = args_.seed,
          .sample_numbers = numbers_};
}

void Loop::begin_source(std::span<const std::span<const int32_t>> ids) {
  Source::Wanted wanted;
  note_wanted(args_.policy, wanted);
  for (const Policy* onlooker : args_.onlookers) note_wanted(*onlooker, wanted);
  args_.source.want(wanted);
  args_.source.begin(ids);
}

void Loop::begin(std::span<const std::span<const int32_t>> ids, int64_t pages) {
  KV_CHECK(std::ssize(ids) == args_.sequences);
  const BatchShape shape = batch_shape();
  watch_.start();
  for (const PolicySlot& place : args_.policy.slots()) begin_slot(place.slot, shape, args_.baseline);
  watch_.stop(result_.begin_seconds);
  // An onlooker is asked for nothing but its scores.
  for (Policy* onlooker : args_.onlookers) begin_slot(*onlooker->scorer, shape, args_.baseline);
  for (Observer* observer : args_.observers) observer->begin(shape);
  begin_source(ids);
  pass_.cache().reserve(pages);
}

void Loop::resume(std::span<const std::span<const int32_t>> ids, LoopState state) {
  KV_CHECK(std::ssize(ids) == args_.sequences);
  const BatchShape shape = batch_shape();
  for (Observer* observer : args_.observers) observer->begin(shape);
  begin_source(ids);
  pass_.resume(std::move(state.cache), std::move(state.done));
  for (int s = 0; s < args_.sequences; ++s) {
    accounts_.resume(s, state.events[static_cast<size_t>(s)], pass_.cache());
  }
}

int32_t Loop::filled_at_once(const Policy& policy, int64_t sequences) {
  const int64_t tokens = policy.admission->window() > 0 ? kFillTokensSwept : kFillTokens;
  return static_cast<int32_t>(std::max<int64_t>(1, tokens / sequences));
}

void Loop::fill(int32_t entries) {
  const SourceInfo& info = args_.source.info();
  const DType type = args_.backend.activation_type();
  const int64_t kv = int64_t{info.kv_heads} * info.head_dim, query = int64_t{info.q_heads} * info.head_dim;
  const int32_t piece = filled_at_once(args_.policy, args_.sequences);
  const int64_t tokens = int64_t{std::min(piece, entries)} * args_.sequences;
  Tensor keys(args_.backend, type, tokens * kv), values(args_.backend, type, tokens * kv), queries;
  queries = Tensor(args_.backend, type, tokens * query);
  uint64_t stream = args_.seed;
  for (Tensor* tensor : {&keys, &values, &queries}) {
    args_.backend.random_normal({.output = tensor->ref(), .count = tensor->elements(), .seed = stream++});
  }
  for (int32_t filled = 0; filled < entries; filled += piece) {
    pass_.start(std::vector<int32_t>(static_cast<size_t>(args_.sequences), std::min(piece, entries - filled)));
    for (int layer = 0; layer < info.layers; ++layer) {
      pass_.take_up(
          layer, {.queries = queries.ref(), .keys = keys.ref(), .values = values.ref(), .pre_rope_keys = keys.ref()});
    }
    sweep_all();
  }
  accounts_.note_peak(pass_.cache());
}

void Loop::step(const Step& step) {
  pass_.start(step.counts, 1, step.decodes);
  TokenLosses losses;
  pass_.run(losses);
  accounts_.note_block(pass_.block(), pass_.cache());
  sweep_for(step);
  mark_due(step);
  pass_.score();
  cut();
  pass_.settle();
  for (Observer* observer : args_.observers) observer->block_done(pass_.block(), losses);
}

void Loop::rank(std::span<const int32_t> counts) {
  pass_.start(counts);
  TokenLosses losses;
  pass_.run(losses);
  note_block(losses);
  sweep_all();
  std::vector<uint8_t> due;
  for (const int32_t tokens : counts) due.push_back(tokens > 0 ? 1 : 0);
  pass_.due().set(due, pass_.done());
  pass_.score();
  pass_.settle();
}

// A block that nothing was cut after.
void Loop::note_block(const TokenLosses& losses) {
  accounts_.note_block(pass_.block(), pass_.cache());
  for (Observer* observer : args_.observers) observer->block_done(pass_.block(), losses);
}

void Loop::decode(std::span<const int32_t> active, int steps, int pause_every, const Pause& pause) {
  KV_CHECK(steps > 0 && pause_every > 0);
  pass_.due().set_none();
  pass_.start(active, steps, true);
  TokenLosses losses;
  pass_.run(losses);
  note_block(losses);
  sweep_aged();
  // The first step has left every buffer as large as the others need it.
  std::unique_ptr<Recording> recording;
  if (steps > kLeastRecorded && pass_.is_recordable()) recording = pass_.record_next();
  bool goes_on = pause(1, false);
  for (int finished = 1; goes_on && finished < steps;) {
    const int stretch = std::min(pause_every, steps - finished);
    for (int i = 0; i < stretch; ++i) {
      pass_.note_next();
      recording ? recording->run() : pass_.run_next();
      note_block(losses);
      sweep_aged();
    }
    goes_on = pause(stretch, recording != nullptr);
    finished += stretch;
  }
  if (args_.policy.admission->window() > 0) pass_.cache().settle();
}

// Nobody ranks, divides or counts what no query will see.
void Loop::sweep_for(const Step& step) {
  std::vector<uint8_t> sequences;
  for (int s = 0; s < args_.sequences; ++s) {
    const bool event = args_.capacity || step.keep[static_cast<size_t>(s)] >= 0;
    sequences.push_back(event || pass_.cache().wants_sweep(s) ? 1 : 0);
  }
  if (sweep(sequences)) pass_.cache().settle();
}

void Loop::sweep_all() {
  if (sweep(std::vector<uint8_t>(static_cast<size_t>(args_.sequences), 1))) pass_.cache().settle();
}

void Loop::sweep_aged() {
  std::vector<uint8_t> sequences;
  for (int s = 0; s < args_.sequences; ++s) sequences.push_back(pass_.cache().wants_sweep(s) ? 1 : 0);
  sweep(sequences);
}

bool Loop::sweep(std::span<const uint8_t> sequences) {
  const bool any = std::any_of(sequences.begin(), sequences.end(), [](uint8_t one) { return one != 0; });
  if (args_.policy.admission->window() == 0 || !any) return false;
  pass_.sweep(sequences);
  return true;
}

void Loop::mark_due(const Step& step) {
  pass_.due().set_none();
  const auto stays_whole = [](int32_t keep) { return keep < 0; };
  const bool may_be_due = args_.capacity || !std::all_of(step.keep.begin(), step.keep.end(), stays_whole);
  if (!args_.policy.scorer || !may_be_due) return;
  watch_.start();
  std::vector<uint8_t> due(static_cast<size_t>(args_.sequences), 0);
  totals_.assign(due.size(), -1);
  for (size_t s = 0; s < due.size(); ++s) {
    totals_[s] = left_by(step, static_cast<int>(s));
    due[s] = is_due(args_.policy, pass_.cache(), static_cast<int>(s), totals_[s], args_.capacity) ? 1 : 0;
  }
  pass_.due().set(due, pass_.done());
  watch_.stop(result_.evict_seconds);
}

int64_t Loop::left_by(const Step& step, int sequence) const {
  const auto s = static_cast<size_t>(sequence);
  if (args_.capacity) return entries_left(pass_.cache(), sequence, pass_.done()[s], *args_.capacity);
  return step.keep[s] < 0 ? -1 : int64_t{step.keep[s]} * args_.source.info().layers * args_.source.info().kv_heads;
}

int32_t Loop::tokens_until_full(int sequence) const {
  KV_CHECK(args_.capacity);
  const int32_t done = pass_.done()[static_cast<size_t>(sequence)];
  return kv::tokens_until_full(pass_.cache(), sequence, done, *args_.capacity);
}

void Loop::cut() {
  const Due& due = pass_.due();
  if (!due.any()) return;
  kv::cut({.backend = args_.backend,
           .info = args_.source.info(),
           .cache = pass_.cache(),
           .policy = args_.policy,
           .ranker = pass_.rankers().front(),
           .onlookers = pass_.rankers().subspan(1),
           .due = due,
           .totals = totals_,
           .capacity = args_.capacity,
           .interval = args_.interval,
           .observers = args_.observers},
          result_.evict_seconds);
  watch_.start();
  for (int s = 0; s < args_.sequences; ++s) {
    if (!due.sequences()[static_cast<size_t>(s)]) continue;
    accounts_.note_event(s, pass_.done()[static_cast<size_t>(s)], pass_.cache());
  }
  watch_.stop(result_.evict_seconds);
}

LoopState Loop::leave() {
  std::vector<int32_t> done(pass_.done().begin(), pass_.done().end());
  KV_CHECK(events_.size() == done.size());
  return {.cache = std::move(pass_.cache()), .done = std::move(done), .events = std::move(events_)};
}

ReplayResult Loop::finish() {
  if (pass_.cache().entries() > 0) sweep_all();
  const Cache& cache = pass_.cache();
  pass_.settle();
  result_.attention_seconds = pass_.attention_seconds();
  result_.admission_seconds = pass_.admission_seconds();
  if (args_.policy.scorer) result_.observe_seconds = pass_.observe_seconds(0);
  result_.score_seconds = score_seconds();
  result_.sequences = accounts_.close(cache);
  if (!args_.count_pairs) {
    for (ReplayResult::PerSequence& sequence : result_.sequences) sequence.attended_pairs = -1;
  }
  const std::vector<int64_t> pairs = pass_.seen_pairs();
  for (size_t s = 0; s < pairs.size(); ++s) result_.sequences[s].attended_pairs = pairs[s];
  for (const ReplayResult::PerSequence& sequence : result_.sequences) events_.push_back(sequence.events);
  const auto pages = static_cast<size_t>(cache.peak_pages());
  const size_t beside =
      column_page_bytes(scorer_needs(args_.policy).columns(args_.source.info().group())) + cache.bound_page_bytes();
  result_.peak_kv_bytes = pages * cache.kv_page_bytes();
  result_.peak_column_bytes = pages * beside;
  result_.entry_bytes = static_cast<double>(cache.kv_page_bytes() + beside) / kPageTokens;
  if (args_.policy.scorer) result_.query_bytes = pass_.rankers().front().query_bytes();
  result_.end_kv_bytes = static_cast<size_t>(cache.used_pages()) * cache.kv_page_bytes();
  return std::move(result_);
}

}  // namespace kv
