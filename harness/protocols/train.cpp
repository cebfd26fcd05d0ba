#include "harness/protocols/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "harness/protocols/protocol.h"
#include "harness/spec/axis_owners.h"
#include "harness/spec/case_check.h"
#include "harness/spec/case_policy.h"
#include "harness/spec/grid.h"
#include "harness/spec/places.h"
#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/learned/learner.h"

namespace kv {
namespace {

// Each policy at each point of the axes is one training; metrics are what its steps measure.
void check_train(const Spec& spec) {
  spec.refuse_key("trace", "protocol train runs a model, expected the key 'model'");
  spec.refuse_key("metrics", "protocol train measures its steps, expected no such key");
  spec.refuse_key("batch", "expected as an option of the key 'learn': texts of a step");
  for (const DataSpec& data : spec.data) {
    if (data.kind != DataKind::kJsonl) continue;
    throw UserError(fmt::format("{}: data: '{}' is a set of questions; protocol train expects texts", data.source.where,
                                data.name));
  }
}

std::optional<PolicySlot> learning_slot(const Policy& policy) {
  for (const PolicySlot& place : policy.slots()) {
    if (place.slot.learner()) return place;
  }
  return std::nullopt;
}

Learner* find_learner(const Policy& policy) {
  const std::optional<PolicySlot> place = learning_slot(policy);
  return place ? place->slot.learner() : nullptr;
}

// One policy for everything that may fill a slot, so that whatever learns is among them.
std::vector<Policy> every_filling() {
  std::vector<Policy> all;
  for (const PolicyEntry* entry : policies()) all.push_back(make_policy(entry->name, {}));
  for (const auto* entry : registry_of<Admission>().all()) {
    all.push_back(make_policy("full", {}, {.admission = {entry->name}}));
  }
  return all;
}

// What every learner may be told, so that reading a spec knows the keys, each once, as the first says it. Values are
// for check_train_case: whether one is sound may depend on another that an axis sets.
void declare_all_options(Params& params) {
  Params defaults(params.owner());
  TrainingOptions::read(defaults, {});
  for (const Policy& policy : every_filling()) {
    if (Learner* learner = find_learner(policy)) learner->read(defaults);
  }
  std::vector<DeclaredParam> options;
  for (const DeclaredParam& option : defaults.declared()) {
    const bool known = std::any_of(options.begin(), options.end(),
                                   [&](const DeclaredParam& other) { return other.key == option.key; });
    if (!known) options.push_back(option);
  }
  params.declare(options);
}

// All texts are of every training: what an axis changes of them would be mixed.
void refuse_axes_of_data(const CaseCheck& check) {
  const AxisOwners owners(check.spec);
  for (const GivenParam& param : check.point) {
    if (!owners.is_of_data(param.key)) continue;
    throw UserError(fmt::format("{}: axes: '{}' changes the texts; protocol train expects another spec for others",
                                param.where, param.key));
  }
}

// A training is of one slot: what another would decide has no part in it.
void refuse_bystanders(const CaseCheck& check, const Policy& policy) {
  const std::string learner = learner_name(policy);
  const auto refuse = [&](std::string_view kind, const std::string& name, std::string_view without) {
    if (name == without || name == learner) return;
    check.refuse(fmt::format("trains {}, in which {} '{}' has no part, expected {}", learner, kind, name, without));
  };
  refuse("policy", policy.name, "full");
  refuse("allocation", policy.allocation_name, "uniform");
  refuse("admission", policy.admission_name, "none");
  refuse("selection", policy.selection_name, "all");
}

// As the case gives them to that kind of slot.
const std::vector<GivenParam>& options_of(const Case& policy_case, std::string_view kind) {
  const SlotChoices& slots = policy_case.slots;
  if (kind == "allocation") return slots.allocation.options;
  if (kind == "admission") return slots.admission.options;
  if (kind == "selection") return slots.selection.options;
  return policy_case.options;
}

// An option that what is learned does not depend on would be taken for one that it does.
void refuse_idle_options(const CaseCheck& check, const Policy& policy) {
  const PolicySlot place = learning_slot(policy).value();
  const std::vector<std::string> idle = place.slot.learner()->idle_options();
  for (const GivenParam& option : options_of(check.candidate, place.kind)) {
    if (std::find(idle.begin(), idle.end(), option.key) == idle.end()) continue;
    check.refuse(fmt::format("trains {}, which does not depend on its option '{}', expected no such option", place.name,
                             option.key),
                 option.where);
  }
}

void check_train_case(const CaseCheck& check) {
  refuse_axes_of_data(check);
  Policy policy = make_case_policy(check.spec, check.candidate);
  Learner* const learner = find_learner(policy);
  if (!learner) check.refuse("learns nothing, expected a slot with weights: wg-kv, foresight-kv … (docs/learning.md)");
  refuse_bystanders(check, policy);
  at(check.spec.file, [&] { return read_training(check.spec, check.candidate, *learner); });
  refuse_idle_options(check, policy);
  for (const DataSpec& data : check.spec.data) {
    if (data.tokens.value_or(0) == 0 || *data.tokens >= learner->least_tokens()) continue;
    throw UserError(fmt::format("{}: data: '{}': tokens = {}: expected at least {}, or nothing is learned from it",
                                data.source.where, data.name, *data.tokens, learner->least_tokens()));
  }
}

// What the training goes on from.
std::vector<InputFile> files_of_training(const CaseCheck& check, const ModelIdentity& model) {
  Policy policy = make_case_policy(check.spec, check.candidate);
  Learner& learner = learner_of(policy);
  read_training(check.spec, check.candidate, learner);
  return at(check.spec.file + ": " + std::string(kLearnKey), [&] { return learner.check(model); });
}

// Numbers that a step can have, of all trainings of a spec.
std::set<int64_t> last_steps(const Spec& spec, int64_t steps) {
  std::set<int64_t> last;
  for (const Axis& axis : spec.axes) {
    for (const std::vector<GivenParam>& point : axis.points) {
      for (const GivenParam& param : point) {
        if (param.key == "steps") last.insert(whole_number(param, 1, std::numeric_limits<int>::max(), "steps") - 1);
      }
    }
  }
  if (last.empty()) last.insert(steps - 1);
  return last;
}

// What every policy's steps measure, by the options that the key `learn` has, those of axes aside.
std::vector<Headline> headlines_of_training(const Spec& spec) {
  std::vector<Headline> headlines;
  for (const Component& component : spec.policies) {
    Policy policy = make_policy(component.name, component.options, component.slots);
    Learner* const learner = find_learner(policy);
    if (!learner) continue;
    const TrainingOptions options = spec.read_options(kLearnKey, [&](Params& params) {
      learner->read(params);
      return TrainingOptions::read(params, learner->defaults());
    });
    std::set<int64_t> at = last_steps(spec, options.steps);
    at.insert(0);
    for (const LearnedMeasure& measure : learner->measures()) {
      Headline headline{.name = measure.name,
                        .title = measure.title,
                        .metric = measure.name,
                        .better = measure.better,
                        .curve_at = {at.begin(), at.end()}};
      std::replace(headline.name.begin(), headline.name.end(), '_', '-');
      const bool known = std::any_of(headlines.begin(), headlines.end(),
                                     [&](const Headline& other) { return other.metric == headline.metric; });
      if (!known) headlines.push_back(std::move(headline));
    }
  }
  return headlines;
}

std::string train_plan(const Spec& spec, const Grid& grid) {
  int64_t texts = 0;
  for (const Workload& workload : grid.workloads) texts += workload.model == 0 ? workload.samples : 0;
  const std::vector<Case>& cases = grid.workloads.front().cases;
  return fmt::format("{}: {} steps on {} texts in all (trainings: {}, models: {})", spec.name, steps_of(spec, cases),
                     texts, cases.size(), spec.models.size());
}

const RegisterProtocol train_protocol{{
    .name = std::string(kTrainProtocol),
    .summary = "trains what a policy decides by, step by step, on texts that a model reads",
    .learns = true,
    .takes_every_slot = true,
    .verb = "train",
    .keys = {{.name = std::string(kLearnKey),
              .help = "how it is trained: steps, texts a step, learning rate; and what the policy's own training asks",
              .read = declare_all_options,
              .as_axes = true}},
    .headlines_of = headlines_of_training,
    .starter = R"(data:
  - {task: reason, tokens: 512, samples: 64}  # texts, drawn anew: kvlab list tasks
learn:                                        # kvlab describe train
  steps: 50
  batch: 2
  budget: 128
  interval: 32
)",
    .starter_policies = "[{policy: foresight-kv, weights: mine}]",
    .check = check_train,
    .check_case = check_train_case,
    .files = files_of_training,
    .plan = train_plan,
}};

}  // namespace

TrainingOptions read_training(const Spec& spec, const Case& policy_case, Learner& learner) {
  const auto read = [&](Params& params) {
    learner.read(params);
    TrainingOptions options = TrainingOptions::read(params, learner.defaults());
    if (options.seed == 0) options.seed = spec.seed;
    return options;
  };
  return spec.read_options(kLearnKey, read, policy_case.settings);
}

int64_t steps_of(const Spec& spec, std::span<const Case> cases) {
  int64_t steps = 0;
  for (const Case& policy_case : cases) {
    Policy policy = make_case_policy(spec, policy_case);
    steps += read_training(spec, policy_case, learner_of(policy)).steps;
  }
  return steps;
}

Learner& learner_of(Policy& policy) {
  Learner* const learner = find_learner(policy);
  KV_CHECK(learner);  // check_train_case
  return *learner;
}

std::string learner_name(const Policy& policy) { return learning_slot(policy).value().name; }

}  // namespace kv
