#include "sim/replay/prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/error.h"
#include "sim/policy/layer_view.h"
#include "sim/replay/cut.h"
#include "sim/replay/schedule.h"
#include "sim/replay/stopwatch.h"

namespace kv {

namespace {

std::vector<Policy*> one_of_each(std::span<Policy* const> policies) {
  std::vector<Policy*> distinct;
  for (Policy* policy : policies) {
    const auto same = [&](const Policy* other) { return other->scorer_name == policy->scorer_name; };
    if (policy->scorer && std::none_of(distinct.begin(), distinct.end(), same)) distinct.push_back(policy);
  }
  return distinct;
}

std::vector<int> rankers_of(std::span<Policy* const> policies, std::span<Policy* const> ranking) {
  std::vector<int> rankers;
  for (const Policy* policy : policies) {
    const auto found = std::find_if(ranking.begin(), ranking.end(),
                                    [&](const Policy* other) { return other->scorer_name == policy->scorer_name; });
    rankers.push_back(found == ranking.end() ? -1 : static_cast<int>(found - ranking.begin()));
  }
  return rankers;
}

std::vector<int32_t> lengths_of(const PrefillArgs& args) {
  std::vector<int32_t> lengths;
  for (const auto& context : args.contexts) {
    if (context.empty()) throw UserError(fmt::format("prefill: context {} is empty", lengths.size()));
    lengths.push_back(static_cast<int32_t>(context.size()));
  }
  return lengths;
}

}  // namespace

Prefill::Prefill(const PrefillArgs& args)
    : args_(args),
      ranking_(one_of_each(args.policies)),
      ranker_of_(rankers_of(args.policies, ranking_)),
      lengths_(lengths_of(args)),
      shape_(checked_shape()),
      loop_({.backend = args.backend,
             .source = args.source,
             .policies = ranking_,
             .sequences = static_cast<int>(args.contexts.size()),
             .seed = args.seed,
             .sample_numbers = args.sample_numbers,
             .observers = args.observers,
             .only_ranks = true,
             .time_phases = false}) {
  Stopwatch watch(args_.backend);
  watch.start();
  loop_.begin(args_.contexts, shape_.pages);
  const Schedule steps = schedule();
  for (size_t i = 0; i + 1 < steps.size(); ++i) loop_.step(steps[i]);
  loop_.rank(steps.back().counts);
  watch.stop(seconds_);
}

// The pieces of a replay, but every context's last one in the last step, where all are ranked at once.
Schedule Prefill::schedule() const {
  Schedule steps;
  for (size_t s = 0; s < lengths_.size(); ++s) {
    const Schedule own = full_schedule(std::span(&lengths_[s], 1), args_.prefill_chunk);
    while (steps.size() < own.size()) {
      steps.insert(steps.begin(),
                   {std::vector<int32_t>(lengths_.size(), 0), std::vector<int32_t>(lengths_.size(), -1)});
    }
    for (size_t i = 0; i < own.size(); ++i) steps[steps.size() - own.size() + i].counts[s] = own[i].counts[0];
  }
  return steps;
}

RunShape Prefill::checked_shape() const {
  int64_t tokens = 0;
  for (const Step& step : schedule()) {
    tokens = std::max(tokens, std::accumulate(step.counts.begin(), step.counts.end(), int64_t{0}));
  }
  const RunShape shape = run_shape(resident_bounds(schedule(), make_policy("full", {}), args_.source.info()), tokens);
  check_memory(shape);
  return shape;
}

// What the pass takes, and what each scorer adds to it.
void Prefill::check_memory(const RunShape& shape) const {
  const Footprint plain = run_footprint(args_.backend, args_.source, make_policy("full", {}), shape);
  Footprint need = plain;
  for (const Policy* policy : ranking_) {
    const Footprint own = run_footprint(args_.backend, args_.source, *policy, shape);
    need.cache += own.cache - plain.cache;
    need.activations += own.activations - plain.activations;
  }
  require_memory(args_.backend, need, fmt::format("a prefill of {} contexts", lengths_.size()));
}

double Prefill::score_seconds(size_t policy) const {
  const int ranker = ranker_of_.at(policy);
  return ranker < 0 ? 0 : loop_.score_seconds(static_cast<size_t>(ranker));
}

size_t Prefill::context_bytes() const {
  return static_cast<size_t>(loop_.cache().used_pages()) * loop_.cache().kv_page_bytes();
}

ScoredLayer Prefill::scored(size_t policy, int layer) const {
  const int ranker = ranker_of_.at(policy);
  KV_CHECK(ranker >= 0);
  return loop_.ranker(static_cast<size_t>(ranker))
      .scored(layer_view(args_.backend, args_.source.info(), loop_.cache(), layer));
}

int64_t Prefill::copy_pages(const Policy& policy, std::span<const int32_t> keep, std::span<const int32_t> room) const {
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
  Policy& own = *args_.policies[policy];
  const int ranker = ranker_of_[policy];
  const int64_t pages = copy_pages(own, keep, room);
  require_memory(args_.backend, {.cache = loop_.cache().clone_bytes(pages)},
                 fmt::format("a copy of the cache for {}", own.name));
  LoopState state{
      .cache = loop_.cache().clone(pages), .done = lengths_, .events = std::vector<int64_t>(keep.size(), 0)};
  if (ranker < 0) return state;
  own.allocation->begin({.backend = &args_.backend,
                         .source = &args_.source.info(),
                         .sequences = static_cast<int>(lengths_.size()),
                         .seed = args_.seed,
                         .sample_numbers = args_.sample_numbers});
  std::vector<uint8_t> due;
  for (size_t s = 0; s < keep.size(); ++s) {
    own.scorer->check(keep[s], 0);
    due.push_back(keep[s] < lengths_[s] ? 1 : 0);
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
       .policy = own,
       .ranker = loop_.ranker(static_cast<size_t>(ranker)),
       .due = marked,
       .keep = keep},
      seconds);
  return state;
}

}  // namespace kv
