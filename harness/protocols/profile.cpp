#include <fmt/format.h>

#include "harness/protocols/calibrator.h"
#include "harness/protocols/profiles.h"
#include "harness/protocols/protocol.h"
#include "harness/spec/case_check.h"
#include "harness/spec/grid.h"
#include "kernels/error.h"

namespace kv {
namespace {

// What means nothing where there are no rows.
void check_profile(const Spec& spec) {
  spec.refuse_key("trace", "protocol profile runs a model, expected the key 'model'");
  for (const char* key : {"axes", "metrics", "batch", "tables", "plots", "paper", "verdict"}) {
    spec.refuse_key(key, "protocol profile makes no rows, expected no such key");
  }
}

// Nothing is cut: what a scorer would keep is compared with what is asked.
void check_profile_case(const CaseCheck& check) {
  const Component& component = check.component();
  const auto refuse = [&](const std::string& where, std::string_view what) {
    throw UserError(fmt::format("{}: {}", where, what));
  };
  const auto refuse_policy = [&](std::string_view what) {
    refuse(component.where, fmt::format("policy '{}' {}", component.label, what));
  };
  if (!check.policy.scorer) refuse_policy("never evicts, so there is nothing to profile");
  if (check.candidate.slots.allocation.name != "uniform") {
    refuse_policy("has an allocation of its own, which a profile has no use for");
  }
  if (check.policy.oracle()) refuse_policy("needs the future, which no profile can foresee");
  const int interval = check.spec.read_options(kCalibrationKey, read_calibration).interval;
  if (interval == 0 && !check.policy.scorer->takes_prompts()) {
    refuse_policy("judges by an interval's queries, expected one: calibration: {interval: N}");
  }
  if (const int own = check.policy.scorer->interval(interval); own != interval) {
    refuse_policy(fmt::format("runs at an interval of {}, not at that of the calibration, {}", own, interval));
  }
  const ModelChoice& choice = check.spec.models[static_cast<size_t>(check.model)];
  if (choice.random) refuse(choice.source.where, "random weights answer nothing, expected a model folder");
  for (const DataSpec& data : check.spec.data) {
    if (data.kind == DataKind::kTask) continue;
    refuse(data.source.where, fmt::format("data: '{}' asks nothing; protocol profile expects a task", data.name));
  }
}

std::string profile_plan(const Spec& spec, const Grid&) {
  return fmt::format("{}: {} budget profiles, of each policy and of the oracle's order, for each of {} models",
                     spec.name, spec.policies.size() + 1, spec.models.size());
}

const RegisterProtocol profile{{
    .name = std::string(kProfileProtocol),
    .summary = "budget profiles, which allocation lu-kv looks up, from a task's questions and their answers",
    .verb = "profile",
    .keys = {{.name = std::string(kImportanceKey),
              .help = "what losses are counted in, which 002 leaves open; where it is given the file's name says so",
              .read = [](Params& params) { ImportanceOptions::read_unit(params); }},
             {.name = std::string(kCalibrationKey),
              .help = "how orders are taken, and a name for profiles that stand beside the model's own",
              .read = [](Params& params) { read_calibration(params); }}},
    .starter = R"(data:
  - {task: kv, tokens: 512, questions: 4}  # a task: kvlab list tasks, kvlab describe kv
)",
    .starter_policies = "[{policy: keydiff, sinks: 4, recent: 1}]",
    .check = check_profile,
    .check_case = check_profile_case,
    .plan = profile_plan,
}};

}  // namespace
}  // namespace kv
