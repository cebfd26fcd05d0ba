#include "harness/protocols/batch_memory.h"
#include "harness/protocols/own_yield.h"
#include "harness/protocols/protocol.h"
#include "harness/protocols/replay_runner.h"
#include "harness/spec/case_check.h"
#include "harness/spec/places.h"

namespace kv {
namespace {

void check_one_shot_case(const CaseCheck& check) {
  if (!check.policy.scorer) return;
  if (check.candidate.fraction("keep") == 0) check.refuse("needs the axis keep");
  at(check.where_of({kAdmissionAxis}), [&] { check_admission(check.policy, 0); });
}

EvictionPlan plan_cut(const Spec& spec, const Case& unit_case, const Policy& policy,
                      std::span<const Sample* const> samples) {
  std::vector<int32_t> lengths, contexts, keep;
  for (const Sample* sample : samples) {
    lengths.push_back(static_cast<int32_t>(sample->ids.size()));
    contexts.push_back(sample->context_tokens);
    keep.push_back(kept_tokens(sample->context_tokens, unit_case.fraction("keep")));
    policy.scorer->check_budget(keep.back(), 0);
  }
  return {one_shot_schedule(lengths, contexts, keep, spec.chunk())};
}

const RegisterProtocol one_shot{{
    .name = "one-shot",
    .summary = "a context is cut once, at its end; what follows it is read over what is left",
    .takes_every_slot = true,
    .axes = {fraction_axis("keep", "share of the context's entries that a head keeps, on average")},
    .numbers = replay_numbers(),
    .starter = R"(data:
  - {task: kv, tokens: 512}  # a task: kvlab list tasks, kvlab describe kv
axes:                        # every combination runs; kvlab describe axes
  keep: [0.5, 0.2]           # share of the context that a head keeps
metrics: [loss, recall]      # kvlab list metrics
)",
    .starter_policies = "[full, snapkv, keydiff, expected-attention, streaming]",
    .check_case = check_one_shot_case,
    .plan = replay_plan,
    .memory = replay_memory,
    .remarks = own_yield,
    .open = [](const UnitBatch& batch) -> std::unique_ptr<UnitRunner> {
      return std::make_unique<ReplayRunner>(batch, ReplayRunner::Events::kOne, plan_cut);
    },
}};

}  // namespace
}  // namespace kv
