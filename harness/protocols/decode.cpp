#include <fmt/format.h>

#include <numeric>

#include "harness/protocols/batch_memory.h"
#include "harness/protocols/own_yield.h"
#include "harness/protocols/protocol.h"
#include "harness/protocols/pruning.h"
#include "harness/protocols/replay_runner.h"
#include "harness/spec/case_check.h"
#include "harness/spec/places.h"
#include "kernels/error.h"
#include "sim/policy/policy.h"

namespace kv {
namespace {

constexpr std::string_view kCutBy = "cut_by";
constexpr std::string_view kGolden = "golden";

// Golden has to keep the budget, too, and what others measure would be golden's.
void check_onlooker(const CaseCheck& check) {
  const Pruning pruning = pruning_of(check.candidate, check.policy);
  if (check.policy.admission->window() > 0) {
    check.refuse("with cut_by = golden looks on at the full cache's tokens, expected no admission",
                 check.where_of({kAdmissionAxis}));
  }
  if (check.policy.selection->selects()) {
    check.refuse("with cut_by = golden looks on at queries that read everything, expected no selection",
                 check.where_of({kSelectionAxis}));
  }
  at(check.where_of({"budget"}), [&] { check_decode(make_policy(kGolden, {}), pruning.budget, pruning.interval); });
  for (const Component& metric : check.spec.metrics) {
    if (metric.name == "evicted_overlap") continue;
    throw UserError(
        fmt::format("{}: metric '{}' is of who evicts, which with cut_by = golden is not the policy; "
                    "expected evicted_overlap alone",
                    metric.where, metric.name));
  }
}

void check_decode_case(const CaseCheck& check) {
  if (!check.policy.scorer) return;
  if (check.candidate.word(kCutBy) == kGolden && check.candidate.count("capacity") > 0) {
    check.refuse("with cut_by = golden is pruned to a budget, expected no axis capacity", check.where_of({"capacity"}));
  }
  check_pruning(check);
  if (check.candidate.word(kCutBy) == kGolden) check_onlooker(check);
}

// Events fall at B + kL, so statistics in blocks of the greatest common divisor begin at all of them.
BaselineNeeds decode_needs(const Case& unit_case) {
  const int budget = unit_case.count("budget"), interval = unit_case.count("interval");
  BaselineNeeds needs{.statistics_block = budget > 0 && interval > 0 ? std::gcd(budget, interval) : 0};
  if (unit_case.word(kCutBy) == kGolden) needs.merge(make_policy(kGolden, {}).future_needs());
  return needs;
}

EvictionPlan plan_pruning(const Spec& spec, const Case& unit_case, const Policy& policy,
                          std::span<const Sample* const> samples) {
  std::vector<int32_t> lengths;
  for (const Sample* sample : samples) lengths.push_back(static_cast<int32_t>(sample->ids.size()));
  const Pruning pruning = pruning_of(unit_case, policy);
  return {.schedule = schedule_of(pruning, lengths, Follows::kNothing, spec.chunk()),
          .pruning = pruning,
          .cut_by = std::string(unit_case.word(kCutBy) == kGolden ? kGolden : "")};
}

std::vector<ProtocolAxis> decode_axes() {
  std::vector<ProtocolAxis> axes = pruning_axes();
  axes.push_back(
      cutting(word_axis(std::string(kCutBy), {"itself", std::string(kGolden)},
                        "who evicts: the policy itself, or golden while it looks on (metric evicted_overlap)")));
  return axes;
}

const RegisterProtocol decode{{
    .name = "decode",
    .summary = "a text is read token by token, as if generated, and pruned as it grows",
    .is_default = true,
    .takes_every_slot = true,
    .axes = decode_axes(),
    .numbers = replay_numbers(),
    .starter = R"(data:
  - {task: reason, tokens: 512}             # a task: kvlab list tasks, kvlab describe reason
  - {name: prose, task: book, tokens: 512}  # or a file: {text: my.txt, tokens: 512}
axes:                                       # every combination runs; kvlab describe axes
  budget: [64, 128]                         # entries that a head keeps
  interval: 32                              # tokens from one eviction to the next
metrics: [loss, recall]                     # kvlab list metrics
)",
    .starter_policies = "[full, golden, h2o, snapkv, streaming]",
    .check_case = check_decode_case,
    .needs = decode_needs,
    .plan = replay_plan,
    .memory = replay_memory,
    .remarks = own_yield,
    .open = [](const UnitBatch& batch) -> std::unique_ptr<UnitRunner> {
      return std::make_unique<ReplayRunner>(batch, ReplayRunner::Events::kMany, plan_pruning);
    },
}};

}  // namespace
}  // namespace kv
