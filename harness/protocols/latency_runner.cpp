#include "harness/protocols/latency_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "harness/spec/case_policy.h"
#include "kernels/error.h"
#include "kernels/paged.h"
#include "sim/replay/loop.h"
#include "sim/replay/schedule.h"
#include "sim/tasks/random.h"

namespace kv {
namespace {

constexpr int kLengths = 9;               // at which a growing cache is timed, ends included
constexpr int kLengthsBeforePruning = 3;  // of a cache that will be pruned: the least part of its generation
constexpr int kLengthStep = 128;          // closer than that they would be alike
constexpr int kWarmUpSteps = 4;
constexpr int kProbeSteps = 16;  // at one length, those before the recording included
constexpr int kWarmUpPrompt = 8192;
constexpr double kLongEnough = 40;  // seconds after which a measurement is not repeated
constexpr int kMostBatch = 1 << 20;

// Entries a head at which the first event falls: from then on every interval is like the last.
int entries_at_first_event(const TimedRun& timed) { return timed.budget + timed.interval; }

bool is_pruned(const TimedRun& timed) { return timed.budget > 0; }

// Entries a head that the prompt leaves.
int entries_after_prompt(const TimedRun& timed) {
  return timed.keep > 0 ? kept_tokens(timed.context, timed.keep) : std::max(timed.context, 1);
}

// Tokens after the prompt: of the generation that is worked out, or of the probe that times steps.
int tokens_after_prompt(const TimedRun& timed) { return std::max(timed.new_tokens, kProbeSteps); }

// Entries a head on average, at the peak.
int peak_entries(const TimedRun& timed) {
  const int grown = std::max(timed.context, entries_after_prompt(timed) + tokens_after_prompt(timed));
  return is_pruned(timed) ? std::min(grown, entries_at_first_event(timed)) : grown;
}

// Events of a generation that starts at `from` entries: after each full interval but one that ends it.
int events_of(const TimedRun& timed, int from) {
  if (!is_pruned(timed)) return 0;
  const int beyond = from + timed.new_tokens - timed.budget - 1;
  return beyond < timed.interval ? 0 : beyond / timed.interval;
}

}  // namespace

TimedRun TimedRun::of(const Case& unit_case) {
  return {.context = unit_case.count("context"),
          .new_tokens = unit_case.count("new_tokens"),
          .batch = unit_case.word("batch").empty() ? 1 : unit_case.count("batch"),
          .budget = unit_case.count("budget"),
          .interval = unit_case.count("interval"),
          .keep = unit_case.fraction("keep"),
          .prefill_chunk = unit_case.count("prefill_chunk"),
          .unit_case = &unit_case};
}

int warm_up_tokens(int context, int chunk) { return std::min(context, std::max(kWarmUpPrompt, chunk)); }

ResidentBound whole_generation(const TimedRun& timed, const Allocation& allocation, const SourceInfo& info,
                               const Arrivals& arrivals) {
  return generation_bound(info, allocation,
                          {.prompt = std::max(timed.context, 1),
                           .kept = entries_after_prompt(timed),
                           .more = tokens_after_prompt(timed),
                           .budget = timed.budget,
                           .interval = timed.interval},
                          arrivals);
}

LatencyRunner::LatencyRunner(const UnitBatch& batch)
    : batch_(batch), backend_(batch.backend), spec_(batch.spec), subject_(batch.subject) {}

std::vector<Row> LatencyRunner::run(const Case& unit_case) {
  const TimedRun timed = TimedRun::of(unit_case);
  return timed.batch > 0 ? measure(timed, timed.batch) : measure_largest(timed);
}

// The estimate leaves out what ops take for a moment, and what learned gates let in shows as it comes, so the largest
// batch is the largest that really ran.
std::vector<Row> LatencyRunner::measure_largest(const TimedRun& timed) {
  for (int batch = largest_batch(timed);; batch -= std::max(1, batch / 50)) {
    try {
      std::vector<Row> rows = measure(timed, batch);
      add(timed, "max_batch", batch, "sequences", rows);
      return rows;
    } catch (const MemoryError&) {
      if (batch == 1) throw;
    }
  }
}

int LatencyRunner::largest_batch(const TimedRun& timed) const {
  const size_t free = backend_.memory().free;
  int fits = 0, too_large = kMostBatch;
  while (too_large - fits > 1) {
    const int middle = fits + (too_large - fits) / 2;
    if (footprint(timed, middle, Foreseen::kAtMost).total() <= free) {
      fits = middle;
    } else {
      too_large = middle;
    }
  }
  return std::max(fits, 1);
}

Footprint LatencyRunner::footprint(const TimedRun& timed, int batch, Foreseen foreseen) const {
  ModelSource& source = *subject_.model();
  const Policy policy = make_case_policy(spec_, *timed.unit_case);
  const int chunk = prefill_chunk(timed, policy, batch);
  const int64_t block = std::min(std::max(timed.context, 1), chunk);
  const Arrivals arrivals{policy.admission.get(), std::max(chunk, Loop::filled_at_once(policy, batch)), foreseen};
  const ResidentBound sequence = whole_generation(timed, *policy.allocation, source.info(), arrivals);
  return run_footprint(backend_, source, policy,
                       {.sequences = batch,
                        .pages = batch * sequence.pages(),
                        .longest = sequence.longest(),
                        .tokens = batch * block,
                        .logits = int64_t{batch} * source.vocab(),
                        .interval = timed.interval});
}

int LatencyRunner::prefill_chunk(const TimedRun& timed, const Policy& policy, int batch) const {
  if (timed.prefill_chunk > 0) return timed.prefill_chunk;
  if (spec_.prefill_chunk > 0 || spec_.device == "cpu") return spec_.chunk();
  // Of 65536 tokens at the shape of Llama-3.1-8B on an H100: 3.73, 3.64, 3.63 and 3.56 s in chunks of 1024 to 8192;
  // with a window of 256, where a chunk lies there whole until it is swept, 1.84, 1.82, 1.89 and 2.15.
  constexpr int kAtOnce = 8192, kAtOnceSwept = 2048;
  return std::max(1, (policy.admission->window() > 0 ? kAtOnceSwept : kAtOnce) / batch);
}

size_t LatencyRunner::learned_bytes(const TimedRun& timed) const {
  return make_case_policy(spec_, *timed.unit_case).learned_bytes(subject_.model()->info(), backend_.activation_type());
}

std::vector<Row> LatencyRunner::measure(const TimedRun& timed, int batch) {
  ModelSource& source = *subject_.model();
  require_memory(backend_, footprint(timed, batch, Foreseen::kSurely),
                 fmt::format("a batch of {} with {} entries a head", batch, peak_entries(timed)));
  backend_.reset_peak();
  peak_kv_bytes_ = peak_bytes_ = 0;
  std::vector<Row> rows;
  if (timed.context > 0) {
    const Prompt prompt = prefill(timed, batch);
    add(timed, "prefill_time", prompt.first_token, "s", rows);
    if (timed.keep > 0) add(timed, "compress_time", prompt.compress, "s", rows);
    add(timed, "admission_time", prompt.admission, "s", rows);
    add(timed, "kept_kv_bytes", static_cast<double>(kept_kv_bytes_), "bytes", rows);
    const size_t held = source.weight_bytes() + learned_bytes(timed) + kept_kv_bytes_;
    add(timed, "held_bytes", static_cast<double>(held), "bytes", rows);
  }
  if (timed.new_tokens > 0) {
    add_generation(timed, batch, rows);
  } else {
    add(timed, "decode_step_time", steps_at(timed, batch, entries_after_prompt(timed)), "s", rows);
  }
  add(timed, "weight_bytes", static_cast<double>(source.weight_bytes()), "bytes", rows);
  if (const size_t learned = learned_bytes(timed); learned > 0) {
    add(timed, "learned_bytes", static_cast<double>(learned), "bytes", rows);
  }
  add(timed, "peak_kv_bytes", static_cast<double>(peak_kv_bytes_), "bytes", rows);
  add(timed, "peak_bytes", static_cast<double>(std::max(peak_bytes_, backend_.peak_bytes())), "bytes", rows);
  add(timed, "batch_size", batch, "sequences", rows);
  return rows;
}

template <class Measure>
void LatencyRunner::repeat(const Measure& measure) const {
  const auto begin = std::chrono::steady_clock::now();
  for (int repetition = 0; repetition < spec_.samples; ++repetition) {
    measure();
    if (std::chrono::steady_clock::now() - begin > std::chrono::duration<double>(kLongEnough)) return;
  }
}

LatencyRunner::Prompt LatencyRunner::prefill(const TimedRun& timed, int batch) {
  const Policy policy = make_case_policy(spec_, *timed.unit_case);
  const int chunk = prefill_chunk(timed, policy, batch);
  const bool admits = policy.admission->window() > 0;
  probe(timed, batch, {.prompt = warm_up_tokens(timed.context, chunk)});
  Prompt prompt;
  repeat([&] {
    const GenerateResult result = probe(timed, batch, {.prompt = timed.context});
    kept_kv_bytes_ = result.costs.end_kv_bytes;
    prompt.first_token.push_back(result.prefill_seconds);
    prompt.compress.push_back(result.costs.score_seconds + result.costs.evict_seconds);
    if (admits) prompt.admission.push_back(result.costs.admission_seconds);
  });
  return prompt;
}

LatencyRunner::Series LatencyRunner::steps_at(const TimedRun& timed, int batch, int length) {
  const int prompt = std::max(1, length - kProbeSteps);
  Series seconds;
  repeat([&] {
    const Probe short_run{.prompt = prompt, .filled = prompt - 1, .new_tokens = kProbeSteps};
    seconds.push_back(probe(timed, batch, short_run).step_seconds());
  });
  return seconds;
}

const LatencyRunner::Interval& LatencyRunner::interval_of(const TimedRun& timed, int batch) {
  const std::string key =
      fmt::format("{} {} {} {}", timed.budget, timed.interval, batch, deciding_of(*timed.unit_case));
  const auto found = intervals_.find(key);
  if (found != intervals_.end()) {
    peak_kv_bytes_ = std::max(peak_kv_bytes_, found->second.peak_kv_bytes);
    peak_bytes_ = std::max(peak_bytes_, found->second.peak_bytes);
    return found->second;
  }
  const auto run_past_event = [&](int entries) {  // to the first event and one step beyond
    return probe(timed, batch,
                 {.prompt = entries, .filled = entries - 1, .new_tokens = entries_at_first_event(timed) - entries + 2});
  };
  run_past_event(
      std::max(1, entries_at_first_event(timed) - kWarmUpSteps));  // the first event allocates what the others find
  Interval interval;
  repeat([&] {
    const GenerateResult result = run_past_event(timed.budget);
    KV_CHECK(result.costs.sequences.front().events == 1);
    interval.step.push_back((result.decode_seconds - result.stretches.back().seconds) / timed.interval);
    interval.score.push_back(result.costs.score_seconds);
    interval.cut.push_back(result.costs.evict_seconds);
  });
  interval.peak_kv_bytes = peak_kv_bytes_;
  interval.peak_bytes = backend_.peak_bytes();
  return intervals_.emplace(key, std::move(interval)).first->second;
}

GenerateResult LatencyRunner::probe(const TimedRun& timed, int batch, const Probe& run) {
  ModelSource& source = *subject_.model();
  const bool cut_before = timed.keep > 0 && run.filled > 0;
  Policy policy = cut_before ? load_reader(spec_, *timed.unit_case) : load_case_policy(spec_, *timed.unit_case);
  Random random(spec_.seed);
  std::vector<int32_t> ids(static_cast<size_t>(run.prompt));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(static_cast<uint64_t>(source.vocab())));
  const std::vector<std::span<const int32_t>> prompts(static_cast<size_t>(batch), ids);  // time cares for lengths only
  GenerateArgs args{.backend = backend_, .source = source, .policy = policy, .prompts = prompts};
  args.filled = run.filled;
  args.max_new_tokens = run.new_tokens;
  args.seed = spec_.seed;
  args.prefill_chunk = prefill_chunk(timed, policy, batch);
  if (policy.scorer && is_pruned(timed)) {
    args.budget = timed.budget;
    args.interval = timed.interval;
  }
  if (policy.scorer && timed.keep > 0) args.keep = timed.keep;
  GenerateResult result = generate(args);
  peak_kv_bytes_ = std::max(peak_kv_bytes_, result.costs.peak_kv_bytes + result.costs.peak_column_bytes);
  return result;
}

LatencyRunner::Series LatencyRunner::growth(const TimedRun& timed, int batch, int from, int to,
                                            std::vector<Row>& rows) {
  Series sum(static_cast<size_t>(spec_.samples), 0.0);  // as short as the shortest of what is added up
  if (to <= from) return sum;
  const int max_points = is_pruned(timed) ? kLengthsBeforePruning : kLengths;
  const int points = std::clamp((to - from) / kLengthStep + 1, 2, max_points);
  // The longest first: what does not fit shows at once, and the pool of every later one fits into what that frees.
  Series longer;
  int longer_length = to;
  for (int point = points - 1; point >= 0; --point) {
    const int length = from + static_cast<int>(int64_t{to - from} * point / (points - 1));
    const Series now = steps_at(timed, batch, length);
    add(timed, "step_time", now, "s", rows);
    sum.resize(std::min(sum.size(), now.size()));
    for (size_t r = 0; r < now.size(); ++r) rows[rows.size() - now.size() + r].x = length;
    for (size_t r = 0; length < to && r < sum.size(); ++r) {
      sum[r] += (longer_length - length) * (longer[r] + now[r]) / 2;
    }
    longer = now;
    longer_length = length;
  }
  return sum;
}

void LatencyRunner::add_generation(const TimedRun& timed, int batch, std::vector<Row>& rows) {
  const int from = entries_after_prompt(timed);
  const int end = from + timed.new_tokens;
  const int events = events_of(timed, from);
  const int grown = events > 0 ? entries_at_first_event(timed) : end;
  Series decode = growth(timed, batch, from, grown, rows);
  Series eviction(decode.size(), 0.0), total, rate, step;
  if (events > 0) {
    const Interval& interval = interval_of(timed, batch);
    add_event(timed, interval, rows);
    decode.resize(std::min(decode.size(), interval.step.size()));
    eviction.resize(decode.size());
    for (size_t r = 0; r < decode.size(); ++r) {
      decode[r] += (end - grown) * interval.step[r];
      eviction[r] = events * (interval.score[r] + interval.cut[r]);
    }
  }
  for (size_t r = 0; r < decode.size(); ++r) {
    step.push_back(decode[r] / timed.new_tokens);
    total.push_back(decode[r] + eviction[r]);
    rate.push_back(static_cast<double>(batch) * timed.new_tokens / total[r]);
  }
  add(timed, "decode_step_time", step, "s", rows);
  add(timed, "decode_time", decode, "s", rows);
  add(timed, "eviction_time", eviction, "s", rows);
  add(timed, "generation_time", total, "s", rows);
  add(timed, "decode_throughput", rate, "tokens/s", rows);
  add(timed, "evictions", events, "", rows);
}

void LatencyRunner::add_event(const TimedRun& timed, const Interval& interval, std::vector<Row>& rows) const {
  Series both = interval.score;
  for (size_t r = 0; r < both.size(); ++r) both[r] += interval.cut[r];
  add(timed, "eviction_event_time", both, "s", rows);
  add(timed, "eviction_score_time", interval.score, "s", rows);
  add(timed, "eviction_cut_time", interval.cut, "s", rows);
}

void LatencyRunner::add(const TimedRun& timed, const char* metric, const Series& values, const char* unit,
                        std::vector<Row>& rows) const {
  for (size_t r = 0; r < values.size(); ++r) {
    add(timed, metric, values[r], unit, rows);
    rows.back().sample = static_cast<int64_t>(r);
  }
}

void LatencyRunner::add(const TimedRun& timed, const char* metric, double value, const char* unit,
                        std::vector<Row>& rows) const {
  add_row(rows, batch_.blank(*timed.unit_case), metric, value, unit);
}

}  // namespace kv
