#include "harness/protocols/latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "kernels/error.h"
#include "kernels/paged.h"
#include "sim/replay/schedule.h"
#include "sim/tasks/random.h"

namespace kv {
namespace {

constexpr int kLengths = 9;               // at which a growing cache is timed, ends included
constexpr int kLengthsBeforePruning = 3;  // of a cache that will be pruned: the least part of its generation
constexpr int kLengthStep = 128;          // closer than that they would be alike
constexpr int kWarmUpSteps = 4;
constexpr int kProbeSteps = 16;  // at one length, those before the recording included
constexpr int kWarmUpPrompt = 1024;
constexpr double kLongEnough = 5;  // seconds after which a measurement is not repeated
constexpr int kMostBatch = 1 << 20;

// Entries a head at which the first event falls: from then on every interval is like the last one.
int first_event(const Case& one) { return one.budget + one.interval; }

bool is_pruned(const Case& one) { return one.budget > 0; }

// Entries a head that the prompt leaves.
int entries_after_prompt(const Case& one) {
  return one.keep > 0 ? kept_tokens(one.context, one.keep) : std::max(one.context, 1);
}

// Tokens after the prompt: of the generation that is worked out, or of the probe that times steps.
int tokens_after_prompt(const Case& one) { return std::max(one.new_tokens, kProbeSteps); }

// Entries a head on average, at the peak.
int longest(const Case& one) {
  const int grown = std::max(one.context, entries_after_prompt(one) + tokens_after_prompt(one));
  return is_pruned(one) ? std::min(grown, first_event(one)) : grown;
}

// Events of a generation that starts at `from` entries: after each full interval but one that ends it.
int events_of(const Case& one, int from) {
  if (!is_pruned(one)) return 0;
  const int beyond = from + one.new_tokens - one.budget - 1;
  return beyond < one.interval ? 0 : beyond / one.interval;
}

}  // namespace

ResidentBound whole_generation(const Case& one, const Allocation& allocation, const SourceInfo& info) {
  return generation_bound(info, allocation,
                          {.prompt = std::max(one.context, 1),
                           .kept = entries_after_prompt(one),
                           .more = tokens_after_prompt(one),
                           .budget = one.budget,
                           .interval = one.interval});
}

LatencyRunner::LatencyRunner(Backend& backend, const Spec& spec, Subject& subject)
    : backend_(backend), spec_(spec), subject_(subject) {}

std::vector<Row> LatencyRunner::run(const Case& one) {
  try {
    return one.batch > 0 ? measure(one, one.batch) : measure_largest(one);
  } catch (const UserError& error) {
    Row row = blank(one);
    row.skipped = error.what();
    return {row};
  }
}

// The estimate leaves out what ops take for a moment, so the largest batch is the largest that really ran.
std::vector<Row> LatencyRunner::measure_largest(const Case& one) {
  for (int batch = largest_batch(one);; batch -= std::max(1, batch / 50)) {
    try {
      std::vector<Row> rows = measure(one, batch);
      add(one, "max_batch", batch, "sequences", rows);
      return rows;
    } catch (const MemoryError&) {
      if (batch == 1) throw;
    }
  }
}

int LatencyRunner::largest_batch(const Case& one) const {
  const size_t free = backend_.memory().free;
  int fits = 0, too_large = kMostBatch;
  while (too_large - fits > 1) {
    const int middle = fits + (too_large - fits) / 2;
    (footprint(one, middle).total() <= free ? fits : too_large) = middle;
  }
  return std::max(fits, 1);
}

Footprint LatencyRunner::footprint(const Case& one, int batch) const {
  ModelSource& source = *subject_.model();
  const int64_t block = std::min(std::max(one.context, 1), spec_.prefill_chunk);
  const Policy policy = make_case_policy(spec_, one);
  const ResidentBound sequence = whole_generation(one, *policy.allocation, source.info());
  return run_footprint(backend_, source, policy,
                       {.sequences = batch,
                        .pages = batch * sequence.pages(),
                        .longest = sequence.longest(),
                        .tokens = batch * block,
                        .logits = int64_t{batch} * source.vocab()});
}

std::vector<Row> LatencyRunner::measure(const Case& one, int batch) {
  ModelSource& source = *subject_.model();
  require_memory(backend_, footprint(one, batch),
                 fmt::format("a batch of {} with {} entries a head", batch, longest(one)));
  backend_.reset_peak();
  peak_kv_bytes_ = peak_bytes_ = 0;
  std::vector<Row> rows;
  if (one.context > 0) {
    const Prompt prompt = prefill(one, batch);
    add(one, "prefill_time", prompt.first_token, "s", rows);
    if (one.keep > 0) add(one, "compress_time", prompt.compress, "s", rows);
    add(one, "kept_kv_bytes", static_cast<double>(kept_kv_bytes_), "bytes", rows);
  }
  if (one.new_tokens > 0) {
    add_generation(one, batch, rows);
  } else {
    add(one, "decode_step_time", steps_at(one, batch, entries_after_prompt(one)), "s", rows);
  }
  add(one, "weight_bytes", static_cast<double>(source.weight_bytes()), "bytes", rows);
  add(one, "peak_kv_bytes", static_cast<double>(peak_kv_bytes_), "bytes", rows);
  add(one, "peak_bytes", static_cast<double>(std::max(peak_bytes_, backend_.peak_bytes())), "bytes", rows);
  add(one, "batch_size", batch, "sequences", rows);
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

LatencyRunner::Prompt LatencyRunner::prefill(const Case& one, int batch) {
  probe(one, batch, {.prompt = std::min(one.context, kWarmUpPrompt)});
  Prompt prompt;
  repeat([&] {
    const GenerateResult result = probe(one, batch, {.prompt = one.context});
    kept_kv_bytes_ = result.costs.end_kv_bytes;
    prompt.first_token.push_back(result.prefill_seconds);
    prompt.compress.push_back(result.costs.score_seconds + result.costs.evict_seconds);
  });
  return prompt;
}

LatencyRunner::Series LatencyRunner::steps_at(const Case& one, int batch, int length) {
  const int prompt = std::max(1, length - kProbeSteps);
  Series seconds;
  repeat([&] {
    const Probe asked{.prompt = prompt, .filled = prompt - 1, .new_tokens = kProbeSteps};
    seconds.push_back(probe(one, batch, asked).step_seconds());
  });
  return seconds;
}

const LatencyRunner::Interval& LatencyRunner::interval_of(const Case& one, int batch) {
  std::string key = fmt::format("{} {} {} {} {}", one.policy, one.allocation.name, one.budget, one.interval, batch);
  for (const GivenParam& option : one.options) key += fmt::format(" {}={}", option.key, option.text);
  const auto found = intervals_.find(key);
  if (found != intervals_.end()) {
    peak_kv_bytes_ = std::max(peak_kv_bytes_, found->second.peak_kv_bytes);
    peak_bytes_ = std::max(peak_bytes_, found->second.peak_bytes);
    return found->second;
  }
  const auto from = [&](int entries) {  // to the first event and one step beyond
    return probe(one, batch, {.prompt = entries, .filled = entries - 1, .new_tokens = first_event(one) - entries + 2});
  };
  from(std::max(1, first_event(one) - kWarmUpSteps));  // the first event allocates what the others find
  Interval interval;
  repeat([&] {
    const GenerateResult result = from(one.budget);
    KV_CHECK(result.costs.sequences.front().events == 1);
    interval.step.push_back((result.decode_seconds - result.stretches.back().seconds) / one.interval);
    interval.score.push_back(result.costs.score_seconds);
    interval.cut.push_back(result.costs.evict_seconds);
  });
  interval.peak_kv_bytes = peak_kv_bytes_;
  interval.peak_bytes = backend_.peak_bytes();
  return intervals_.emplace(key, std::move(interval)).first->second;
}

GenerateResult LatencyRunner::probe(const Case& one, int batch, const Probe& asked) {
  ModelSource& source = *subject_.model();
  const bool cut_before = one.keep > 0 && asked.filled > 0;
  Policy policy = cut_before ? make_policy("full", {}) : load_case_policy(spec_, one);
  Random random(spec_.seed);
  std::vector<int32_t> ids(static_cast<size_t>(asked.prompt));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(static_cast<uint64_t>(source.vocab())));
  const std::vector<std::span<const int32_t>> prompts(static_cast<size_t>(batch), ids);  // time cares for lengths only
  GenerateArgs args{.backend = backend_, .source = source, .policy = policy, .prompts = prompts};
  args.filled = asked.filled;
  args.max_new_tokens = asked.new_tokens;
  args.seed = spec_.seed;
  args.prefill_chunk = spec_.prefill_chunk;
  if (policy.scorer && is_pruned(one)) {
    args.budget = one.budget;
    args.interval = one.interval;
  }
  if (policy.scorer && one.keep > 0) args.keep = one.keep;
  GenerateResult result = generate(args);
  peak_kv_bytes_ = std::max(peak_kv_bytes_, result.costs.peak_kv_bytes + result.costs.peak_column_bytes);
  return result;
}

LatencyRunner::Series LatencyRunner::growth(const Case& one, int batch, int from, int to, std::vector<Row>& rows) {
  Series sum(static_cast<size_t>(spec_.samples), 0.0);  // as short as the shortest of what is added up
  if (to <= from) return sum;
  const int most = is_pruned(one) ? kLengthsBeforePruning : kLengths;
  const int points = std::clamp((to - from) / kLengthStep + 1, 2, most);
  // The longest first: what does not fit shows at once, and the pool of every later one fits into what that frees.
  Series longer;
  int longer_length = to;
  for (int point = points - 1; point >= 0; --point) {
    const int length = from + static_cast<int>(int64_t{to - from} * point / (points - 1));
    const Series now = steps_at(one, batch, length);
    add(one, "step_time", now, "s", rows);
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

void LatencyRunner::add_generation(const Case& one, int batch, std::vector<Row>& rows) {
  const int from = entries_after_prompt(one);
  const int end = from + one.new_tokens;
  const int events = events_of(one, from);
  const int grown = events > 0 ? first_event(one) : end;
  Series decode = growth(one, batch, from, grown, rows);
  Series eviction(decode.size(), 0.0), whole, rate, step;
  if (events > 0) {
    const Interval& interval = interval_of(one, batch);
    add_event(one, interval, rows);
    decode.resize(std::min(decode.size(), interval.step.size()));
    eviction.resize(decode.size());
    for (size_t r = 0; r < decode.size(); ++r) {
      decode[r] += (end - grown) * interval.step[r];
      eviction[r] = events * (interval.score[r] + interval.cut[r]);
    }
  }
  for (size_t r = 0; r < decode.size(); ++r) {
    step.push_back(decode[r] / one.new_tokens);
    whole.push_back(decode[r] + eviction[r]);
    rate.push_back(static_cast<double>(batch) * one.new_tokens / whole[r]);
  }
  add(one, "decode_step_time", step, "s", rows);
  add(one, "decode_time", decode, "s", rows);
  add(one, "eviction_time", eviction, "s", rows);
  add(one, "generation_time", whole, "s", rows);
  add(one, "decode_throughput", rate, "tokens/s", rows);
  add(one, "evictions", events, "", rows);
}

void LatencyRunner::add_event(const Case& one, const Interval& interval, std::vector<Row>& rows) const {
  Series both = interval.score;
  for (size_t r = 0; r < both.size(); ++r) both[r] += interval.cut[r];
  add(one, "eviction_event_time", both, "s", rows);
  add(one, "eviction_score_time", interval.score, "s", rows);
  add(one, "eviction_cut_time", interval.cut, "s", rows);
}

Row LatencyRunner::blank(const Case& one) const {
  Row row;
  row.experiment = spec_.name;
  row.model = subject_.name();
  row.data = "random";
  row.policy = spec_.policies[static_cast<size_t>(one.policy)].label;
  row.device = spec_.device;
  row.seed = static_cast<int64_t>(spec_.seed);
  row.axes = one.axes;
  return row;
}

void LatencyRunner::add(const Case& one, const char* metric, const Series& values, const char* unit,
                        std::vector<Row>& rows) const {
  for (size_t r = 0; r < values.size(); ++r) {
    add(one, metric, values[r], unit, rows);
    rows.back().sample = static_cast<int64_t>(r);
  }
}

void LatencyRunner::add(const Case& one, const char* metric, double value, const char* unit,
                        std::vector<Row>& rows) const {
  rows.push_back(blank(one));
  rows.back().metric = metric;
  rows.back().value = value;
  rows.back().unit = unit;
}

}  // namespace kv
