#include "harness/protocols/train.h"

#include <fmt/format.h>

#include "harness/protocols/protocol.h"
#include "harness/spec/case_check.h"
#include "harness/spec/case_policy.h"
#include "harness/spec/grid.h"
#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/learned/learner.h"

namespace kv {
namespace {

// Without an axis each policy is one training; metrics are what its steps measure.
void check_train(const Spec& spec) {
  spec.refuse_key("trace", "protocol train runs a model, expected the key 'model'");
  spec.refuse_key("axes", "protocol train has no axes, expected a policy for each variant");
  spec.refuse_key("metrics", "protocol train measures its steps, expected no such key");
  spec.refuse_key("batch", "expected as an option of the key 'learn': texts of a step");
  for (const DataSpec& data : spec.data) {
    if (data.kind != DataKind::kJsonl) continue;
    throw UserError(fmt::format("{}: data: '{}' is a set of questions; protocol train expects texts", data.source.where,
                                data.name));
  }
}

Learner* find_learner(Policy& policy) {
  for (const PolicySlot& place : policy.slots()) {
    if (Learner* learner = place.slot.learner()) return learner;
  }
  return nullptr;
}

// What every learner may be told, so that reading a spec knows the keys.
void read_all_options(Params& params) {
  TrainingOptions::read(params);
  for (const PolicyEntry* entry : policies()) {
    Policy policy = make_policy(entry->name, {});
    if (Learner* learner = find_learner(policy)) learner->read(params);
  }
}

void check_train_case(const CaseCheck& check) {
  Policy policy = make_case_policy(check.spec, check.candidate);
  Learner* const learner = find_learner(policy);
  if (!learner) check.refuse("learns nothing, expected a policy with weights (kvlab list policies)");
  read_training(check.spec, *learner);
  for (const DataSpec& data : check.spec.data) {
    if (data.tokens.value_or(0) == 0 || *data.tokens >= learner->least_tokens()) continue;
    throw UserError(fmt::format("{}: data: '{}': tokens = {}: expected at least {}, or nothing is learned from it",
                                data.source.where, data.name, *data.tokens, learner->least_tokens()));
  }
}

std::string train_plan(const Spec& spec, const Grid& grid) {
  int64_t texts = 0;
  for (const Workload& workload : grid.workloads) texts += workload.model == 0 ? workload.samples : 0;
  Policy first = make_case_policy(spec, grid.workloads.front().cases.front());
  const TrainingOptions options = read_training(spec, learner_of(first));
  return fmt::format("{}: {} steps of {} of {} texts, for each of {} policies and {} models", spec.name, options.steps,
                     options.batch, texts, spec.policies.size(), spec.models.size());
}

const RegisterProtocol train_protocol{{
    .name = std::string(kTrainProtocol),
    .summary = "trains what a policy decides by, step by step, on texts that a model reads",
    .learns = true,
    .verb = "train",
    .keys = {{.name = std::string(kLearnKey),
              .help = "how it is trained: steps, texts a step, learning rate; and what the policy's own training asks",
              .read = read_all_options}},
    .starter = R"(data:
  - {task: reason, tokens: 512, samples: 64}  # texts, drawn anew: kvlab list tasks
learn:                                        # kvlab describe train
  steps: 50
  batch: 2
  budget: 128
  interval: 32
)",
    .starter_policies = "[foresight-kv]",
    .check = check_train,
    .check_case = check_train_case,
    .plan = train_plan,
}};

}  // namespace

TrainingOptions read_training(const Spec& spec, Learner& learner) {
  return spec.read_options(kLearnKey, [&](Params& params) {
    const TrainingOptions options = TrainingOptions::read(params);
    learner.read(params);
    return options;
  });
}

Learner& learner_of(Policy& policy) {
  Learner* const learner = find_learner(policy);
  KV_CHECK(learner);  // check_train_case
  return *learner;
}

}  // namespace kv
