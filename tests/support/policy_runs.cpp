#include "tests/support/policy_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/error.h"
#include "sim/learned/learner.h"
#include "sim/policy/baseline.h"
#include "sim/replay/baseline_pass.h"
#include "tests/support/backends.h"
#include "tests/support/identity.h"

namespace kv::ref {

namespace {

// Downloads what an event sees: tests may look at every entry.
class Recorder final : public Observer {
 public:
  std::vector<Event> events;

  void evicting(const EvictionView& view) override {
    for (int row = 0; row < view.layer.rows(); ++row) {
      const int sequence = row / view.layer.kv_heads;
      if (view.sequences_due[static_cast<size_t>(sequence)]) record(view, sequence, row);
    }
  }

 private:
  void record(const EvictionView& view, int sequence, int row) {
    const size_t length = static_cast<size_t>(view.layer.lengths[static_cast<size_t>(row)]);
    Backend& backend = view.layer.backend;
    Event event{.sequence = sequence,
                .layer = view.layer.layer,
                .head = row % view.layer.kv_heads,
                .tokens_seen = view.tokens_seen[static_cast<size_t>(sequence)],
                .protection = view.protection,
                .resident = positions(backend, view.layer.cache, row, length),
                .scores = std::vector<float>(length)};
    backend.download(event.scores.data(), view.scores.row(row), length * sizeof(float));
    std::vector<uint8_t> keep(length);
    backend.download(keep.data(), view.keep.row(row), length);
    for (size_t slot = 0; slot < length; ++slot) {
      if (keep[slot]) event.kept.push_back(event.resident[slot]);
    }
    events.push_back(std::move(event));
  }

  static std::vector<int32_t> positions(Backend& backend, const PagedView& cache, int row, size_t length) {
    std::vector<int32_t> pages((length + kPageTokens - 1) / kPageTokens);
    backend.download(pages.data(), cache.page_table + row * cache.max_pages, pages.size() * sizeof(int32_t));
    std::vector<int32_t> all(pages.size() * kPageTokens);
    for (size_t i = 0; i < pages.size(); ++i) {
      backend.download(all.data() + i * kPageTokens, cache.positions + int64_t{pages[i]} * kPageTokens,
                       kPageTokens * sizeof(int32_t));
    }
    all.resize(length);
    return all;
  }
};

bool names_weights(const Options& options) {
  return std::any_of(options.begin(), options.end(), [](const GivenParam& option) { return option.key == "weights"; });
}

std::vector<std::vector<int32_t>> token_ids(const RunArgs& args) {
  std::vector<std::vector<int32_t>> ids;
  for (size_t s = 0; s < args.samples.size(); ++s) {
    ids.emplace_back(static_cast<size_t>(args.lengths[s]), args.samples[s]);
  }
  return ids;
}

NaiveLayer naive_layer(const TinySource& source, int layer) {
  const TinySample& sample = source.sample(0);
  const SourceInfo& info = source.info();
  const size_t index = static_cast<size_t>(layer);
  return {.q_heads = info.q_heads,
          .kv_heads = info.kv_heads,
          .dim = info.head_dim,
          .queries = sample.queries[index],
          .keys = sample.keys[index],
          .values = sample.values[index],
          .pre_rope_queries = sample.pre_rope_queries[index],
          .inv_freq = info.inv_freq};
}

std::vector<NaiveStep> naive_steps(const Schedule& schedule) {
  std::vector<NaiveStep> steps;
  for (const Step& step : schedule) steps.push_back({.count = step.counts[0], .keep = step.keep[0]});
  return steps;
}

void compare(const Event& event, const NaiveEvent& naive, double tolerance) {
  ASSERT_EQ(event.tokens_seen, naive.seen);
  ASSERT_EQ(event.resident, naive.resident);
  const int n = static_cast<int>(event.resident.size());
  double largest = 0;
  for (int slot = 0; slot < n; ++slot) {
    if (!naive.is_protected[static_cast<size_t>(slot)]) {
      largest = std::max(largest, std::abs(naive.scores[static_cast<size_t>(slot)]));
    }
  }
  for (int slot = 0; slot < n; ++slot) {
    if (naive.is_protected[static_cast<size_t>(slot)]) continue;
    const double error = std::abs(event.scores[static_cast<size_t>(slot)] - naive.scores[static_cast<size_t>(slot)]);
    ASSERT_TRUE(error <= tolerance * largest) << "slot " << slot << ": got " << event.scores[static_cast<size_t>(slot)]
                                              << ", want " << naive.scores[static_cast<size_t>(slot)];
  }
  EXPECT_EQ(event.kept, naive.kept);
}

}  // namespace

RunArgs decode_run(const std::string& policy, const Options& options, std::vector<int32_t> samples,
                   std::vector<int32_t> lengths, int budget, int interval) {
  const Policy checked = make_policy(policy, options);
  if (checked.scorer) interval = checked.scorer->interval(interval);
  if (checked.scorer) checked.scorer->check_budget(budget, interval);
  return {.policy = policy,
          .options = options,
          .samples = std::move(samples),
          .lengths = lengths,
          .schedule = decode_schedule(lengths, budget, interval),
          .budget = budget,
          .interval = interval};
}

RunArgs one_shot_run(const std::string& policy, const Options& options, std::vector<int32_t> samples,
                     std::vector<int32_t> lengths, std::vector<int32_t> keep) {
  const Policy checked = make_policy(policy, options);
  if (checked.scorer) {
    for (const int32_t kept : keep) checked.scorer->check_budget(kept, 0);
  }
  std::vector<int32_t> contexts;
  for (const int32_t length : lengths) contexts.push_back(length - 1);
  return {.policy = policy,
          .options = options,
          .samples = std::move(samples),
          .lengths = lengths,
          .schedule = one_shot_schedule(lengths, contexts, keep)};
}

void prepare(Policy& policy, const SourceInfo& info, const Options& options, const SlotChoices& slots) {
  const std::map<const Slot*, const Options*> given = {{policy.scorer.get(), &options},
                                                       {policy.allocation.get(), &slots.allocation.options},
                                                       {policy.admission.get(), &slots.admission.options},
                                                       {policy.selection.get(), &slots.selection.options}};
  const ModelIdentity identity = identity_of(info);
  for (const PolicySlot& place : policy.slots()) {
    Learner* const learner = place.slot.learner();
    if (learner && !names_weights(*given.at(&place.slot))) {
      learner->use(info, learner->initial(info, 1));
    } else if (const std::vector<InputFile> files = place.slot.check(identity, policy.scorer_name); !files.empty()) {
      place.slot.load(files);
    }
  }
}

PolicyRun run_policy(Source& source, Backend& backend, const RunArgs& args) {
  const SlotChoices slots{args.allocation, args.admission, args.selection};
  Policy policy = make_policy(args.policy, args.options, slots);
  prepare(policy, source.info(), args.options, slots);
  const auto ids = token_ids(args);
  const std::vector<std::span<const int32_t>> sequences(ids.begin(), ids.end());
  Baseline baseline;
  if (policy.oracle()) {
    BaselineNeeds wanted = policy.future_needs();
    wanted.merge({.statistics_block = std::max(1, args.interval)});
    baseline = compute_baseline(backend, source, sequences, wanted);
  }
  Recorder recorder;
  std::optional<LoopState> left;
  Observer* const observers[] = {&recorder};
  ReplayResult result = replay({.backend = backend,
                                .source = source,
                                .policy = policy,
                                .sequences = sequences,
                                .schedule = args.schedule,
                                .budget = args.budget,
                                .interval = args.interval,
                                .capacity = args.capacity ? &*args.capacity : nullptr,
                                .seed = args.seed,
                                .sample_numbers = args.samples,
                                .baseline = policy.oracle() ? &baseline : nullptr,
                                .observers = observers,
                                .left = &left});
  return {std::move(recorder.events), std::move(result), std::move(left)};
}

std::vector<std::vector<int32_t>> kept_by(const std::string& policy, const Options& options,
                                          const std::vector<std::vector<float>>& weights, int budget, int interval,
                                          const std::vector<float>& value_lengths) {
  const auto backend = make_backend("cpu");
  TinySource source(*backend, tiny_info(1, static_cast<int>(weights.size()), 1, 2),
                    {weighted_sample(weights, value_lengths)});
  const auto length = static_cast<int32_t>(weights[0].size());
  std::vector<std::vector<int32_t>> kept;
  for (Event& event :
       run_policy(source, *backend, decode_run(policy, options, {0}, {length}, budget, interval)).events) {
    kept.push_back(std::move(event.kept));
  }
  return kept;
}

std::vector<int32_t> kept_once(const std::string& policy, const Options& options,
                               const std::vector<std::vector<float>>& weights, int keep,
                               const std::vector<float>& value_lengths) {
  const auto backend = make_backend("cpu");
  TinySource source(*backend, tiny_info(1, static_cast<int>(weights.size()), 1, 2),
                    {weighted_sample(weights, value_lengths)});
  const auto length = static_cast<int32_t>(weights[0].size());
  PolicyRun run = run_policy(source, *backend, one_shot_run(policy, options, {0}, {length}, {keep}));
  EXPECT_EQ(run.events.size(), 1u);
  return run.events.empty() ? std::vector<int32_t>{} : run.events[0].kept;
}

void expect_agrees(Backend& backend, const std::string& policy, const Options& options, const NaivePolicy& naive,
                   const Agreement& agreement) {
  const SourceInfo info = tiny_info(2, 4, 2, 8);
  TinySource source(backend, info, {random_sample(info, agreement.tokens, 7)});
  const RunArgs args = agreement.interval > 0
                           ? decode_run(policy, options, {0}, {agreement.tokens}, agreement.budget, agreement.interval)
                           : one_shot_run(policy, options, {0}, {agreement.tokens}, {agreement.budget});
  const PolicyRun run = run_policy(source, backend, args);
  for (int layer = 0; layer < info.layers; ++layer) {
    for (int head = 0; head < info.kv_heads; ++head) {
      const auto expected = naive_replay(naive_layer(source, layer), head, naive, naive_steps(args.schedule));
      std::vector<Event> events;
      for (const Event& event : run.events) {
        if (event.layer == layer && event.head == head) events.push_back(event);
      }
      ASSERT_FALSE(expected.empty());
      ASSERT_EQ(events.size(), expected.size());
      for (size_t i = 0; i < events.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "layer " << layer << ", head " << head << ", event " << i);
        compare(events[i], expected[i], agreement.tolerance);
      }
    }
  }
}

void expect_refused(const std::string& policy, const Options& options, int kept, int interval,
                    const std::string& message) {
  const Policy checked = make_policy(policy, options);
  try {
    checked.scorer->check_budget(kept, interval);
    ADD_FAILURE() << policy << " accepted budget " << kept << " at interval " << interval;
  } catch (const UserError& error) {
    EXPECT_EQ(error.what(), message);
  }
}

void expect_bad_option(const std::string& policy, const Options& options, const std::string& message) {
  try {
    make_policy(policy, options);
    ADD_FAILURE() << policy << " accepted its options";
  } catch (const UserError& error) {
    EXPECT_EQ(error.what(), message);
  }
}

}  // namespace kv::ref
