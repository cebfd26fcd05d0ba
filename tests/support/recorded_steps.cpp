#include "tests/support/recorded_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "sim/model/model_files.h"
#include "sim/replay/generate.h"
#include "tests/support/paths.h"
#include "tests/support/policy_runs.h"

namespace kv::ref {

namespace {

// Who observes sees every step, which then runs eagerly.
class Watcher final : public Observer {};

GenerateResult generated(const std::string& device, const SlotChoices& slots, std::span<Observer* const> observers) {
  const auto backend = make_backend(device);
  ModelSource source(*backend, load_model(source_path("tests/data/llama")));
  Policy policy = make_policy("full", {}, slots);
  prepare(policy, source.info(), {}, slots);
  std::vector<int32_t> longer(70), shorter(45);
  std::iota(longer.begin(), longer.end(), 100);
  std::iota(shorter.begin(), shorter.end(), 300);
  const std::vector<std::span<const int32_t>> prompts = {longer, shorter};
  return generate({.backend = *backend,
                   .source = source,
                   .policy = policy,
                   .prompts = prompts,
                   .max_new_tokens = 60,
                   .seed = RunArgs{}.seed,
                   .observers = observers,
                   .count_pairs = true});
}

}  // namespace

void expect_recorded_as_eager(const std::string& backend, const SlotChoices& slots) {
  Watcher watcher;
  Observer* const observers[] = {&watcher};
  const GenerateResult eager = generated(backend, slots, observers), recorded = generated(backend, slots, {});
  const bool has_recorded = std::any_of(recorded.stretches.begin(), recorded.stretches.end(),
                                        [](const GenerateResult::Stretch& stretch) { return stretch.recorded; });
  const Policy policy = make_policy("full", {}, slots);
  const std::vector<PolicySlot> filled = policy.slots();
  EXPECT_NE(has_recorded, std::any_of(filled.begin(), filled.end(),
                                      [](const PolicySlot& place) { return place.slot.needs().host_steps; }));
  for (size_t s = 0; s < eager.sequences.size(); ++s) {
    EXPECT_EQ(recorded.sequences[s].ids, eager.sequences[s].ids);
    EXPECT_EQ(recorded.costs.sequences[s].attended_pairs, eager.costs.sequences[s].attended_pairs);
    EXPECT_EQ(recorded.costs.sequences[s].end_entries, eager.costs.sequences[s].end_entries);
  }
}

}  // namespace kv::ref
