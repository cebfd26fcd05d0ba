#include "harness/protocols/replay_runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/protocols/batch_memory.h"
#include "harness/spec/case_policy.h"
#include "kernels/error.h"
#include "sim/io/hash.h"
#include "sim/replay/baseline_pass.h"

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
  int64_t at_end = 0;
};

// What the schedule asks of one sequence, worked out from the numbers of tokens alone. Events fall where a budget is
// exceeded; under an allocation that may leave less than a budget, wherever there is one.
Expected expected_of(const Schedule& schedule, size_t s, bool keeps_total) {
  Expected expected;
  int64_t resident = 0;
  for (const Step& step : schedule) {
    resident += step.counts[s];
    if (step.keep[s] < 0 || (keeps_total && resident <= step.keep[s])) continue;
    resident = std::min<int64_t>(resident, step.keep[s]);
    ++expected.events;
    expected.kept = resident;
  }
  if (expected.events == 0) expected.kept = resident;
  expected.at_end = resident;
  return expected;
}

enum class Held { kAlike, kOnAverage, kAtMost };

// Budgets are equal totals: the mean is what was asked, whatever the allocation; if that is uniform, of every head.
// Where admission turns tokens away, or an allocation goes by more than budgets, less may be there than asked: so
// little maybe that no event falls, and what is there at the end is then more than an event leaves, by no more than has
// come since.
std::string compare(const Expected& expected, const ReplayResult::PerSequence& real, Held held) {
  const auto kept = static_cast<double>(expected.kept);
  const bool same = real.events == expected.events && real.kept_mean == kept &&
                    (held == Held::kOnAverage || real.kept_max == expected.kept);
  const auto most = static_cast<double>(real.events > 0 ? expected.kept : expected.at_end);
  if (same || (held == Held::kAtMost && real.events <= expected.events && real.kept_mean <= most)) return {};
  return fmt::format("{}kept {} (mean) and {} (max) tokens in {} events, asked were {} in {}", kFailedPrefix,
                     real.kept_mean, real.kept_max, real.events, expected.kept, expected.events);
}

// What a capacity asks of one sequence: at its end, too, the entries older than the window are no more.
std::string compare(const Capacity& capacity, const ReplayResult::PerSequence& real, int64_t heads) {
  const int64_t most = heads * (int64_t{capacity.entries} + capacity.window);
  if (real.end_entries <= most) return {};
  return fmt::format("{}kept {} tokens of all heads at the end in {} events, the capacity is {}", kFailedPrefix,
                     real.end_entries, real.events, most);
}

// The samples' ids, labels and links: all that a replay and its metrics read of them.
std::string hash_of_samples(const std::vector<Sample>& samples) {
  Sha256 hash;
  for (const Sample& sample : samples) {
    hash.update(fmt::format("{} {} {}\n", sample.ids.size(), sample.context_tokens, sample.links.size()));
    hash.update(std::as_bytes(std::span(sample.ids)));
    hash.update(std::as_bytes(std::span(sample.labels)));
    for (const Link& link : sample.links) {
      hash.update(fmt::format("{} {}", link.query_begin, link.query_end));
      for (const auto& [begin, end] : link.sources) hash.update(fmt::format(" {}-{}", begin, end));
      hash.update("\n");
    }
  }
  return hash.hex();
}

// Tokens before those that are read one at a time, as if generated. A text without a question is so from its first one
// where events fall as it grows. UserError where a context is cut once and nothing follows it: nobody would select.
std::vector<int32_t> prompts_of(std::span<const Sample* const> samples, ReplayRunner::Events events) {
  std::vector<int32_t> prompts;
  for (const Sample* sample : samples) {
    const bool has_question = sample->context_tokens < std::ssize(sample->ids);
    if (!has_question && events == ReplayRunner::Events::kOne) {
      throw UserError("no query selects, since nothing follows the context; expected a question behind it");
    }
    prompts.push_back(has_question ? sample->context_tokens : 0);
  }
  return prompts;
}

// A row of a metric, or of an allocation's account.
void add_measured(std::vector<Row>& rows, const Row& blank, const Measured& measured) {
  Row& row = add_row(rows, blank, measured.metric, measured.skipped.empty() ? measured.value : 0, measured.unit);
  row.layer = measured.layer;
  row.head = measured.head;
  row.x = measured.x;
  if (!measured.skipped.empty()) {
    row.value.reset();
    row.skipped = measured.skipped;
  }
  if (!row.skipped.empty()) {
    row.text.clear();
  } else if (!measured.text.empty()) {
    row.text = measured.text;
  }
}

}  // namespace

ReplayRunner::ReplayRunner(const UnitBatch& batch, Events events, PlanEviction plan)
    : batch_(batch), events_(events), plan_(std::move(plan)) {
  for (int number = batch_.first; number < batch_.first + batch_.count; ++number) {
    try {
      samples_.push_back(std::move(batch_.subject.samples(batch_.workload, number, 1).front()));
      numbers_.push_back(number);
    } catch (const UserError& error) {
      unavailable_.emplace(number, error.what());
    }
  }
  for (const Sample& sample : samples_) {
    views_.push_back(&sample);
    sequences_.emplace_back(sample.ids);
    lengths_.push_back(static_cast<int32_t>(sample.ids.size()));
  }
  if (!numbers_.empty()) lanes_.emplace(batch_, numbers_.front(), static_cast<int>(numbers_.size()));
}

void ReplayRunner::begin(std::span<const Case* const> cases) {
  if (samples_.empty()) return;
  try {
    baseline();  // with all threads: the cases, side by side, would have one each
    most_at_once_ = lanes_for(static_cast<int>(cases.size()));
  } catch (const UserError&) {
    most_at_once_ = 1;  // each case will say why
  }
}

// Half the memory that is free, so that what one case's estimate leaves out ends no other.
int ReplayRunner::lanes_for(int cases) const {
  const int most = std::min(batch_.backend.callers(), cases);
  if (most <= 1 || !batch_.subject.model()) return 1;
  const BatchBytes bytes = replay_memory(batch_);
  const size_t free = batch_.backend.memory().free / 2;
  int lanes = most;
  while (lanes > 1 && bytes(lanes * batch_.count) > free) --lanes;
  return lanes;
}

std::string ReplayRunner::inputs() const {
  std::string reasons;
  for (const auto& [number, reason] : unavailable_) reasons += fmt::format("\n{} {}", number, reason);
  return sha256_hex(hash_of_samples(samples_) + reasons);
}

std::vector<std::string> ReplayRunner::prompts() const {
  std::vector<std::string> hashes;
  for (const Sample& sample : samples_) hashes.push_back(sha256_hex(std::as_bytes(std::span(sample.ids))));
  return hashes;
}

const Baseline& ReplayRunner::baseline() {
  const std::lock_guard lock(baseline_mutex_);
  // The pass fails for every case in the same way; computing it again would only fail again.
  if (baseline_error_) std::rethrow_exception(baseline_error_);
  if (baseline_) return *baseline_;
  try {
    const Lanes::Turn lane(*lanes_);
    BaselineNeeds needs = batch_.needs;
    if (!lane.source().info().has_output_weight) needs.value_norms = false;
    baseline_ = compute_baseline(lane.backend(), lane.source(), sequences_, needs);
  } catch (const UserError&) {
    baseline_error_ = std::current_exception();
    throw;
  }
  return *baseline_;
}

ReplayRunner::Outcome ReplayRunner::replay_case(const Case& unit_case) {
  Policy policy = load_case_policy(batch_.spec, unit_case);
  // Independent of the budget, so that one pass stands for all points of the axes.
  EvictionPlan plan = policy.scorer ? plan_(batch_.spec, unit_case, policy, views_)
                                    : EvictionPlan{full_schedule(lengths_, batch_.spec.chunk())};
  if (policy.selection->selects()) plan.schedule = token_by_token(plan.schedule, prompts_of(views_, events_));
  const std::shared_lock subject(subject_);
  const Baseline& full = baseline();
  const Lanes::Turn lane(*lanes_);

  std::vector<int32_t> first = first_events(plan.schedule, sequences_.size());
  CaseView view;
  view.batch = {.backend = &lane.backend(),
                .source = &lane.source().info(),
                .sequences = static_cast<int>(sequences_.size()),
                .budget = plan.pruning.budget,
                .interval = plan.pruning.interval,
                .seed = batch_.spec.seed,
                .sample_numbers = numbers_,
                .future = policy.oracle() ? &full : nullptr};
  view.samples = views_;
  view.baseline = &full;
  view.schedule = &plan.schedule;
  view.decode_time = events_ == Events::kMany;
  view.first_event = first;
  view.decode = batch_.subject.decoder();

  const auto metrics = make_case_metrics(batch_.spec);
  std::vector<Observer*> observers;
  for (const auto& metric : metrics) {
    metric->begin_case(view);
    observers.push_back(metric.get());
  }
  std::optional<Policy> cutter;
  if (!plan.cut_by.empty()) cutter = make_policy(plan.cut_by, {});
  Policy* const onlooker[] = {&policy};
  Outcome outcome;
  outcome.result = replay({.backend = lane.backend(),
                           .source = lane.source(),
                           .policy = cutter ? *cutter : policy,
                           .sequences = sequences_,
                           .schedule = plan.schedule,
                           .budget = plan.pruning.budget,
                           .interval = plan.pruning.interval,
                           .capacity = plan.pruning.capacity ? &*plan.pruning.capacity : nullptr,
                           .seed = batch_.spec.seed,
                           .sample_numbers = numbers_,
                           .baseline = &full,
                           .observers = observers,
                           .onlookers = std::span(onlooker).first(cutter ? 1 : 0)});
  outcome.learned_bytes = policy.learned_bytes(lane.source().info(), lane.backend().activation_type());
  for (size_t s = 0; plan.pruning.capacity && s < first.size(); ++s) first[s] = outcome.result.sequences[s].first_event;
  for (const auto& metric : metrics) metric->report(outcome.result, outcome.measured);
  if (!cutter) policy.allocation->report(outcome.measured);
  const bool alike = cutter || policy.allocation_name == "uniform";
  const bool keeps_total = cutter || policy.allocation->keeps_total();
  const bool at_most = policy.admission->window() > 0 || !keeps_total;
  const Held held = at_most ? Held::kAtMost : alike ? Held::kAlike : Held::kOnAverage;
  const int64_t heads = int64_t{lane.source().info().layers} * lane.source().info().kv_heads;
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const ReplayResult::PerSequence& real = outcome.result.sequences[s];
    outcome.failures.push_back(plan.pruning.capacity ? compare(*plan.pruning.capacity, real, heads)
                                                     : compare(expected_of(plan.schedule, s, keeps_total), real, held));
  }
  return outcome;
}

std::vector<Row> ReplayRunner::run(const Case& unit_case) {
  std::vector<Row> rows;
  if (!samples_.empty()) rows = run_available(unit_case);
  for (const auto& [number, reason] : unavailable_) {
    rows.push_back(batch_.blank(unit_case, number));
    rows.back().skipped = reason;
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.sample < b.sample; });
  return rows;
}

std::vector<Row> ReplayRunner::run_available(const Case& unit_case) {
  try {
    return run_together(unit_case);
  } catch (const MemoryError&) {
    throw;  // fewer at a time would not be the batch that was asked for
  } catch (const PageError&) {
    throw;  // a bug, which others' samples would hide
  } catch (const UserError&) {
    if (samples_.size() == 1) throw;
    std::vector<Row> rows = run_alone(unit_case);
    const bool found = std::any_of(rows.begin(), rows.end(),
                                   [](const Row& row) { return row.metric.empty() && !row.skipped.empty(); });
    if (!found) throw;  // no sample is to blame, so what went wrong is not theirs
    return rows;
  }
}

std::vector<Row> ReplayRunner::run_alone(const Case& unit_case) {
  const std::unique_lock subject(subject_);
  std::vector<Row> rows;
  for (const int number : numbers_) {
    UnitBatch single = batch_;
    single.first = number;
    single.count = 1;
    std::vector<Row> its_rows;
    try {
      its_rows = ReplayRunner(single, events_, plan_).run(unit_case);
    } catch (const MemoryError&) {
      throw;
    } catch (const UserError& error) {
      its_rows = single.skipped(unit_case, error.what());
    }
    rows.insert(rows.end(), its_rows.begin(), its_rows.end());
  }
  return rows;
}

std::vector<Row> ReplayRunner::run_together(const Case& unit_case) {
  const Component& policy = batch_.spec.policies[static_cast<size_t>(unit_case.policy)];
  if (make_case_policy(batch_.spec, unit_case).scorer) return rows_of(unit_case, replay_case(unit_case));
  const std::lock_guard lock(without_scorer_mutex_);
  std::string key = fmt::format("{}\n{}", policy.label, reading_of(unit_case));
  for (const GivenParam& option : unit_case.options) key += fmt::format(" {}={}", option.key, option.text);
  const auto found = without_scorer_.find(key);
  if (found != without_scorer_.end()) return rows_of(unit_case, found->second);
  return rows_of(unit_case, without_scorer_.emplace(key, replay_case(unit_case)).first->second);
}

std::vector<Row> ReplayRunner::rows_of(const Case& unit_case, const Outcome& outcome) const {
  const bool oracle = make_case_policy(batch_.spec, unit_case).oracle();
  const ReplayResult& result = outcome.result;
  // Pools and clocks belong to the batch; its samples share them evenly, so that means and sums stay right.
  const double share = 1.0 / static_cast<double>(samples_.size());
  std::vector<Row> rows;
  for (int s = 0; s < std::ssize(samples_); ++s) {
    Row blank = batch_.blank(unit_case, numbers_[static_cast<size_t>(s)]);
    if (!outcome.failures[static_cast<size_t>(s)].empty()) {
      rows.push_back(blank);
      rows.back().skipped = outcome.failures[static_cast<size_t>(s)];
    }
    add_document(rows, blank, samples_[static_cast<size_t>(s)].document);
    if (oracle) blank.text = "oracle";
    for (const Measured& measured : outcome.measured) {
      if (measured.sample == s) add_measured(rows, blank, measured);
    }
    const ReplayResult::PerSequence& sequence = result.sequences[static_cast<size_t>(s)];
    add_row(rows, blank, "kept_tokens", sequence.kept_mean, "tokens");
    add_row(rows, blank, "kept_tokens_max", static_cast<double>(sequence.kept_max), "tokens");
    add_row(rows, blank, "evictions", static_cast<double>(sequence.events), "");
    add_row(rows, blank, "attended_pairs", static_cast<double>(sequence.attended_pairs), "");
    add_row(rows, blank, "kv_bytes", static_cast<double>(result.peak_kv_bytes) * share, "bytes");
    add_row(rows, blank, "column_bytes", static_cast<double>(result.peak_column_bytes) * share, "bytes");
    if (outcome.learned_bytes > 0) {
      add_row(rows, blank, "learned_bytes", static_cast<double>(outcome.learned_bytes), "bytes");
    }
    add_row(rows, blank, "total_time", result.total_seconds * share, "s");
    add_row(rows, blank, "attention_time", result.attention_seconds * share, "s");
    add_row(rows, blank, "score_time", (result.observe_seconds + result.score_seconds) * share, "s");
    add_row(rows, blank, "evict_time", result.evict_seconds * share, "s");
    add_row(rows, blank, "begin_time", result.begin_seconds * share, "s");
  }
  return rows;
}

std::vector<std::string> replay_numbers() {
  return {"kept_tokens",   "kept_tokens_max", "evictions",      "attended_pairs", "kv_bytes",   "column_bytes",
          "learned_bytes", "total_time",      "attention_time", "score_time",     "evict_time", "begin_time"};
}

std::string replay_plan(const Spec& spec, const Grid& grid) {
  int64_t replays = 0, passes = 0;
  for (const Workload& workload : grid.workloads) {
    replays += static_cast<int64_t>(workload.cases.size()) * workload.samples;
    passes += workload.samples;
  }
  return fmt::format("{}: {} full-cache passes and {} replays of one sample", spec.name, passes, replays);
}

}  // namespace kv
