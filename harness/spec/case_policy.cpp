#include "harness/spec/case_policy.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "harness/spec/places.h"
#include "harness/spec/slot_kinds.h"

namespace kv {

namespace {

// Names of files become paths.
SlotChoice resolved(const Spec& spec, const std::vector<DeclaredParam>& options, SlotChoice slot) {
  for (const DeclaredParam& declared : options) {
    if (declared.type != "file") continue;
    for (GivenParam& option : slot.options) {
      if (option.key == declared.key)
        option.text = resolve_path(spec, {option.text, option.where}, Packed::kMayBe).string();
    }
  }
  return slot;
}

// A line of its own.
std::string written(const std::string& name, const std::vector<GivenParam>& options) {
  std::string text = name;
  for (const GivenParam& option : options) text += fmt::format(" {}={}", option.key, option.text);
  return text + '\n';
}

Policy make(const Spec& spec, const Case& policy_case, std::string_view name, const std::vector<GivenParam>& options,
            const SlotChoice& allocation) {
  const SlotChoices& slots = policy_case.slots;
  const Component& component = spec.policies[static_cast<size_t>(policy_case.policy)];
  SlotChoices found{.allocation = resolved(spec, describe_allocation(allocation.name), allocation),
                    .admission = resolved(spec, describe_admission(slots.admission.name), slots.admission),
                    .selection = resolved(spec, describe_selection(slots.selection.name), slots.selection)};
  return at(component.where, [&] { return make_policy(name, options, std::move(found)); });
}

}  // namespace

Policy make_case_policy(const Spec& spec, const Case& policy_case) {
  const Component& component = spec.policies[static_cast<size_t>(policy_case.policy)];
  return make(spec, policy_case, component.name, policy_case.options, policy_case.slots.allocation);
}

std::string reading_of(const Case& policy_case) {
  const SlotChoices& slots = policy_case.slots;
  return written(slots.admission.name, slots.admission.options) +
         written(slots.selection.name, slots.selection.options);
}

std::string deciding_of(const Case& policy_case) {
  std::string text = written(std::to_string(policy_case.policy), policy_case.options);
  for (const SlotKind& kind : slot_kinds()) {
    const SlotChoice& slot = policy_case.slots.*kind.slot;
    text += written(slot.name, slot.options);
  }
  return text;
}

Policy make_reader(const Spec& spec, const Case& policy_case) {
  return make(spec, policy_case, "full", {}, SlotChoices{}.allocation);
}

Policy load_reader(const Spec& spec, const Case& policy_case) {
  Policy reader = make_reader(spec, policy_case);
  reader.load(policy_case.files);
  return reader;
}

Policy load_case_policy(const Spec& spec, const Case& policy_case) {
  Policy policy = make_case_policy(spec, policy_case);
  policy.load(policy_case.files);
  return policy;
}

std::vector<std::unique_ptr<Metric>> make_case_metrics(const Spec& spec) {
  std::vector<std::unique_ptr<Metric>> all;
  for (const Component& component : spec.metrics) {
    all.push_back(at(component.where, [&] { return make_metric(component.name, component.options); }));
  }
  return all;
}

}  // namespace kv
