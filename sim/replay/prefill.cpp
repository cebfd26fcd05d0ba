#include "sim/replay/prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/error.h"
#include "sim/policy/layer_view.h"
#include "sim/replay/accounts.h"
#include "sim/replay/cut.h"
#include "sim/replay/schedule.h"
#include "sim/replay/stopwatch.h"

namespace kv {

namespace {

std::vector<Policy*> distinct_scorers(std::span<Policy* const> policies) {
  std::vector<Policy*> distinct;
  for (Policy* policy : policies) {
    const auto same = [&](const Policy* other) { return other->scorer_name == policy->scorer_name; };
    if (policy->scorer && std::none_of(distinct.begin(), distinct.end(), same)) distinct.push_back(policy);
  }
  return distinct;
}

std::vector<int> onlookers_of(std::span<Policy* const> policies, std::span<Policy* const> ranking) {
  std::vector<int> onlookers;
  for (const Policy* policy : policies) {
    const auto found = std::find_if(ranking.begin(), ranking.end(),
                                    [&](const Policy* other) { return other->scorer_name == policy->scorer_name; });
    onlookers.push_back(found == ranking.end() ? -1 : static_cast<int>(found - ranking.begin()));
  }
  return onlookers;
}

std::vector<int32_t> lengths_of(const PrefillArgs& args) {
  std::vector<int32_t> lengths;
  for (const auto& context : args.contexts) {
    if (context.empty()) throw UserError(fmt::format("prefill: context {} is empty", lengths.size()));
    lengths.push_back(static_cast<int32_t>(context.size()));
    KV_CHECK(args.interval == 0 || (lengths.back() == lengths.front() && lengths.back() > args.interval));
  }
  return lengths;
}

}  // namespace

Prefill::Prefill(const PrefillArgs& args)
    : args_(args),
      full_(policy_of("full", nullptr)),
      ranking_(distinct_scorers(args.policies)),
      onlooker_of_(onlookers_of(args.policies, ranking_)),
      lengths_(lengths_of(args)),
      shape_(checked_shape()),
      loop_({.backend = args.backend,
             .source = args.source,
             .policy = reader(),
             .onlookers = ranking_,
             .sequences = static_cast<int>(args.contexts.size()),
             .budget = args.interval == 0 ? 0 : lengths_.front() - args.interval,
             .interval = args.interval,
             .seed = args.seed,
             .sample_numbers = args.sample_numbers,
             .observers = args.observers,
             .time_phases = false}) {
  Stopwatch watch(args_.backend);
  watch.start();
  loop_.begin(args_.contexts, pages_at_once(reader(), shape_));
  const Schedule steps = schedule();
  for (size_t i = 0; i + 1 < steps.size(); ++i) loop_.step(steps[i]);
  loop_.rank(steps.back().counts);
  watch.stop(seconds_);
}

// The pieces of a replay, but every context's last one in the last step, where all are ranked at once.
Schedule Prefill::schedule() const {
  Schedule steps;
  for (size_t s = 0; s < lengths_.size(); ++s) {
    const int32_t before = lengths_[s] - args_.interval;
    Schedule pieces = full_schedule(std::span(&before, 1), args_.prefill_chunk);
    if (args_.interval > 0) pieces.push_back({{args_.interval}, {-1}});  // of its own, as decode-time pruning has it
    while (steps.size() < pieces.size()) {
      steps.insert(steps.begin(),
                   {std::vector<int32_t>(lengths_.size(), 0), std::vector<int32_t>(lengths_.size(), -1)});
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      steps[steps.size() - pieces.size() + i].counts[s] = pieces[i].counts[0];
    }
  }
  return steps;
}

RunShape Prefill::checked_shape() const {
  int64_t tokens = 0;
  for (const Step& step : schedule()) {
    tokens = std::max(tokens, std::accumulate(step.counts.begin(), step.counts.end(), int64_t{0}));
  }
  RunShape shape =
      run_shape(resident_bounds(schedule(), reader(), args_.source.info(), nullptr, Foreseen::kSurely), tokens);
  shape.interval = args_.interval;
  check_memory(shape);
  return shape;
}

// What the pass takes, and what each scorer adds to it.
void Prefill::check_memory(const RunShape& shape) const {
  require_memory(args_.backend, run_footprint(args_.backend, args_.source, reader(), shape, ranking_),
                 fmt::format("a prefill of {} contexts", lengths_.size()));
}

double Prefill::score_seconds(size_t policy) const {
  const int onlooker = onlooker_of_.at(policy);
  return onlooker < 0 ? 0 : loop_.onlooking_seconds(static_cast<size_t>(onlooker));
}

size_t Prefill::context_bytes() const {
  return static_cast<size_t>(loop_.cache().used_pages()) * loop_.cache().kv_page_bytes();
}

ScoredLayer Prefill::scored(size_t policy, int layer) const {
  const int onlooker = onlooker_of_.at(policy);
  KV_CHECK(onlooker >= 0);
  return loop_.onlooking(static_cast<size_t>(onlooker))
      .scored(layer_view(args_.backend, args_.source.info(), loop_.cache(), layer));
}

int64_t Prefill::copy_pages(const Policy& policy, std::span<const int32_t> keep, std::span<const int32_t> room) const {
  if (policy.admission->window() > 0) return room.empty() ? 0 : loop_.cache().pages_with(room);
  int64_t pages = 0;
  for (size_t s = 0; s < lengths_.size(); ++s) {
    pages +=
        generation_bound(
            args_.source.info(), *policy.allocation,
            {.prompt = lengths_[s], .kept = policy.scorer ? keep[s] : lengths_[s], .more = room.empty() ? 0 : room[s]})
            .pages();
  }
  return pages;
}

LoopState Prefill::compressed(size_t policy, std::span<const int32_t> keep, double& seconds,
                              std::span<const int32_t> room) {
  KV_CHECK(keep.size() == lengths_.size());
  Policy& cutting = *args_.policies[policy];
  const int onlooker = onlooker_of_[policy];
  const int64_t pages = copy_pages(cutting, keep, room);
  require_memory(args_.backend, {.cache = loop_.cache().clone_bytes(pages)},
                 fmt::format("a copy of the cache for {}", cutting.name));
  LoopState state{
      .cache = loop_.cache().clone(pages), .done = lengths_, .events = std::vector<int64_t>(keep.size(), 0)};
  if (onlooker < 0) return state;
  const BatchShape shape{.backend = &args_.backend,
                         .source = &args_.source.info(),
                         .sequences = static_cast<int>(lengths_.size()),
                         .seed = args_.seed,
                         .sample_numbers = args_.sample_numbers};
  begin_slot(*cutting.allocation, shape, nullptr);
  const int64_t heads = int64_t{args_.source.info().layers} * args_.source.info().kv_heads;
  std::vector<uint8_t> due;
  std::vector<int64_t> totals;
  for (size_t s = 0; s < keep.size(); ++s) {
    cutting.scorer->check_budget(keep[s], args_.interval);
    totals.push_back(keep[s] * heads);
    due.push_back(is_due(cutting, state.cache, static_cast<int>(s), totals[s]) ? 1 : 0);
    state.events[s] = due.back();
  }
  Due marked(args_.backend, args_.source.info().kv_heads);
  Stopwatch watch(args_.backend);
  watch.start();
  marked.set(due, lengths_);
  watch.stop(seconds);
  if (!marked.any()) return state;
  cut({.backend = args_.backend,
       .info = args_.source.info(),
       .cache = state.cache,
       .policy = cutting,
       .ranker = loop_.onlooking(static_cast<size_t>(onlooker)),
       .due = marked,
       .totals = totals,
       .interval = args_.interval},
      seconds);
  return state;
}

}  // namespace kv
