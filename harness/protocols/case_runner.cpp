#include "harness/protocols/case_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/error.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/schedule.h"

namespace kv {
namespace {

// Tokens seen at each sequence's first event; −1 = none happens.
std::vector<int32_t> first_events(const Schedule& schedule, size_t sequences) {
  std::vector<int32_t> seen(sequences, 0), first(sequences, -1);
  for (const Step& step : schedule) {
    for (size_t s = 0; s < sequences; ++s) {
      seen[s] += step.counts[s];
      if (step.keep[s] >= 0 && step.keep[s] < seen[s] && first[s] < 0) first[s] = seen[s];
    }
  }
  return first;
}

struct Expected {
  int64_t events = 0;
  int64_t kept = 0;
};

// What the schedule asks of one sequence, worked out from the numbers of tokens alone.
Expected expected_of(const Schedule& schedule, size_t s) {
  Expected expected;
  int64_t resident = 0;
  for (const Step& step : schedule) {
    resident += step.counts[s];
    if (step.keep[s] < 0 || resident <= step.keep[s]) continue;
    resident = step.keep[s];
    ++expected.events;
    expected.kept = resident;
  }
  if (expected.events == 0) expected.kept = resident;
  return expected;
}

// Budgets are equal totals: the mean is what was asked, whatever the allocation; if that is uniform, of every head.
std::string compare(const Expected& expected, const ReplayResult::PerSequence& real, bool uniform) {
  const bool same = real.events == expected.events && real.kept_mean == static_cast<double>(expected.kept) &&
                    (!uniform || real.kept_max == expected.kept);
  if (same) return {};
  return fmt::format("{}kept {} (mean) and {} (max) tokens in {} events, asked were {} in {}", kFailedPrefix,
                     real.kept_mean, real.kept_max, real.events, expected.kept, expected.events);
}

void add(std::vector<Row>& rows, const Row& blank, const char* metric, double value, const char* unit) {
  rows.push_back(blank);
  rows.back().metric = metric;
  rows.back().value = value;
  rows.back().unit = unit;
}

}  // namespace

CaseRunner::CaseRunner(CaseBatch batch) : batch_(std::move(batch)) {
  for (const Sample& sample : batch_.samples) {
    sequences_.emplace_back(sample.ids);
    lengths_.push_back(static_cast<int32_t>(sample.ids.size()));
    numbers_.push_back(batch_.first + static_cast<int32_t>(samples_.size()));
    samples_.push_back(&sample);
  }
}

const Baseline& CaseRunner::baseline() {
  // The pass fails for every case in the same way; computing it again would only fail again.
  if (!baseline_error_.empty()) throw UserError(baseline_error_);
  if (baseline_) return *baseline_;
  BaselineNeeds needs = batch_.needs;
  if (!source_->info().has_output_weight) needs.value_norms = false;
  try {
    baseline_ = compute_baseline(batch_.backend, *source_, sequences_, needs);
  } catch (const UserError& error) {
    baseline_error_ = error.what();
    throw;
  }
  return *baseline_;
}

Schedule CaseRunner::schedule_of(const Case& one, const Policy& policy) const {
  const int chunk = batch_.spec.prefill_chunk;
  // Independent of the budget, so that one pass stands for all points of the axes.
  if (!policy.scorer) return full_schedule(lengths_, chunk);
  if (batch_.spec.protocol == Protocol::kDecode) {
    return decode_schedule(lengths_, one.budget, policy.scorer->interval(one.interval), chunk);
  }
  std::vector<int32_t> contexts, keep;
  for (const Sample* sample : samples_) {
    contexts.push_back(sample->context_tokens);
    keep.push_back(kept_tokens(sample->context_tokens, one.keep));
  }
  return one_shot_schedule(lengths_, contexts, keep, chunk);
}

CaseRunner::Outcome CaseRunner::replay_case(const Case& one) {
  Policy policy = load_case_policy(batch_.spec, one);
  const bool decode = batch_.spec.protocol == Protocol::kDecode;
  const int interval = policy.scorer && decode ? policy.scorer->interval(one.interval) : 0;
  const int budget = policy.scorer && decode ? one.budget : 0;
  const Schedule schedule = schedule_of(one, policy);
  if (policy.scorer && !decode) {
    for (const Sample* sample : samples_) policy.scorer->check_budget(kept_tokens(sample->context_tokens, one.keep), 0);
  }
  source_ = &batch_.subject.source(batch_.first, batch_.count);
  const Baseline& full = baseline();

  const std::vector<int32_t> first = first_events(schedule, sequences_.size());
  CaseView view;
  view.batch = {.backend = &batch_.backend,
                .source = &source_->info(),
                .sequences = batch_.count,
                .budget = budget,
                .interval = interval,
                .seed = batch_.spec.seed,
                .sample_numbers = numbers_,
                .future = policy.oracle() ? &full : nullptr};
  view.samples = samples_;
  view.baseline = &full;
  view.schedule = &schedule;
  view.decode_time = decode;
  view.first_event = first;
  view.decode = batch_.subject.decoder();

  const auto metrics = make_case_metrics(batch_.spec);
  std::vector<Observer*> observers;
  for (const auto& metric : metrics) {
    metric->begin_case(view);
    observers.push_back(metric.get());
  }
  Outcome outcome;
  outcome.result = replay({.backend = batch_.backend,
                           .source = *source_,
                           .policy = policy,
                           .sequences = sequences_,
                           .schedule = schedule,
                           .budget = budget,
                           .interval = interval,
                           .seed = batch_.spec.seed,
                           .sample_numbers = numbers_,
                           .baseline = &full,
                           .observers = observers});
  for (const auto& metric : metrics) metric->report(outcome.result, outcome.measured);
  policy.allocation->report(outcome.measured);
  for (size_t s = 0; s < sequences_.size(); ++s) {
    outcome.failures.push_back(
        compare(expected_of(schedule, s), outcome.result.sequences[s], one.allocation.name == "uniform"));
  }
  return outcome;
}

std::vector<Row> CaseRunner::run(const Case& one) {
  if (!batch_.unavailable.empty()) return skipped_rows(one, batch_.unavailable);
  try {
    const Component& policy = batch_.spec.policies[static_cast<size_t>(one.policy)];
    if (make_case_policy(batch_.spec, one).scorer) return rows_of(one, replay_case(one));
    std::string key = policy.label;
    for (const GivenParam& option : one.options) key += fmt::format(" {}={}", option.key, option.text);
    const auto found = without_scorer_.find(key);
    if (found != without_scorer_.end()) return rows_of(one, found->second);
    return rows_of(one, without_scorer_.emplace(key, replay_case(one)).first->second);
  } catch (const UserError& error) {
    return skipped_rows(one, error.what());
  }
}

Row CaseRunner::blank(const Case& one, int sequence) const {
  const Component& policy = batch_.spec.policies[static_cast<size_t>(one.policy)];
  Row row;
  row.experiment = batch_.spec.name;
  row.model = batch_.subject.name();
  row.data = batch_.data;
  row.policy = policy.label;
  row.device = batch_.spec.device;
  row.sample = batch_.first + sequence;
  row.seed = static_cast<int64_t>(batch_.spec.seed);
  row.axes = one.axes;
  return row;
}

std::vector<Row> CaseRunner::skipped_rows(const Case& one, const std::string& reason) const {
  std::vector<Row> rows;
  for (int s = 0; s < batch_.count; ++s) {
    rows.push_back(blank(one, s));
    rows.back().skipped = reason;
  }
  return rows;
}

std::vector<Row> CaseRunner::rows_of(const Case& one, const Outcome& outcome) const {
  const bool oracle = make_case_policy(batch_.spec, one).oracle();
  const ReplayResult& result = outcome.result;
  // Pools and clocks belong to the batch; its samples share them evenly, so that means and sums stay right.
  const double share = 1.0 / batch_.count;
  std::vector<Row> rows;
  for (int s = 0; s < batch_.count; ++s) {
    Row base = blank(one, s);
    if (!outcome.failures[static_cast<size_t>(s)].empty()) {
      rows.push_back(base);
      rows.back().skipped = outcome.failures[static_cast<size_t>(s)];
    }
    if (oracle) base.text = "oracle";
    for (const Measured& measured : outcome.measured) {
      if (measured.sample != s) continue;
      Row row = base;
      row.layer = measured.layer;
      row.head = measured.head;
      row.x = measured.x;
      row.metric = measured.metric;
      row.unit = measured.unit;
      if (!measured.text.empty()) row.text = measured.text;
      row.skipped = measured.skipped;
      if (measured.skipped.empty() && !std::isfinite(measured.value)) {
        row.skipped = "not a finite number";
      } else if (measured.skipped.empty()) {
        row.value = measured.value;
      }
      if (!row.skipped.empty()) row.text.clear();
      rows.push_back(std::move(row));
    }
    const ReplayResult::PerSequence& own = result.sequences[static_cast<size_t>(s)];
    add(rows, base, "kept_tokens", own.kept_mean, "tokens");
    add(rows, base, "kept_tokens_max", static_cast<double>(own.kept_max), "tokens");
    add(rows, base, "evictions", static_cast<double>(own.events), "");
    add(rows, base, "attended_pairs", static_cast<double>(own.attended_pairs), "");
    add(rows, base, "kv_bytes", static_cast<double>(result.peak_kv_bytes) * share, "bytes");
    add(rows, base, "column_bytes", static_cast<double>(result.peak_column_bytes) * share, "bytes");
    add(rows, base, "total_time", result.total_seconds * share, "s");
    add(rows, base, "attention_time", result.attention_seconds * share, "s");
    add(rows, base, "score_time", (result.observe_seconds + result.score_seconds) * share, "s");
    add(rows, base, "evict_time", result.evict_seconds * share, "s");
    add(rows, base, "begin_time", result.begin_seconds * share, "s");
  }
  return rows;
}

void check_trace(const Spec& spec, const Trace& trace) {
  for (const Component& component : spec.policies) {
    const Policy policy = make_policy(component.name, component.options);
    if (!policy.scorer || !policy.scorer->needs().pre_rope_queries || trace.info().has_pre_rope_queries) continue;
    throw UserError(fmt::format("{}: policy '{}' needs pre-RoPE queries, which {} lacks (layers.N.pre_rope_queries)",
                                component.where, component.label, trace.name()));
  }
}

}  // namespace kv
