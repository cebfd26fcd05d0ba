#include "harness/spec/axis_owners.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/protocols/protocol.h"
#include "harness/spec/case_check.h"
#include "harness/spec/slot_kinds.h"
#include "kernels/error.h"
#include "sim/policy/policy.h"
#include "sim/policy/spelling.h"
#include "sim/tasks/task.h"

namespace kv {
namespace {

constexpr std::string_view kTokensAxis = "tokens";

bool lists(const std::vector<DeclaredParam>& declared, const std::string& key) {
  return std::any_of(declared.begin(), declared.end(), [&](const DeclaredParam& param) { return param.key == key; });
}

bool sets(const std::vector<GivenParam>& options, const std::string& key) {
  return std::any_of(options.begin(), options.end(), [&](const GivenParam& param) { return param.key == key; });
}

[[noreturn]] void refuse_twice(const GivenParam& param, const std::string& other) {
  throw UserError(
      fmt::format("{}: axes: '{}' is set by '{}', too; expected one of them", param.where, param.key, other));
}

// An axis that another protocol has is no slip of the pen.
void refuse_of_another(const GivenParam& param, const Protocol& protocol) {
  const std::vector<const Protocol*> all = protocols();
  if (std::none_of(all.begin(), all.end(), [&](const Protocol* other) { return other->find_axis(param.key); })) return;
  throw UserError(fmt::format("{}: axes: {} does not belong to protocol {} (expected {})", param.where, param.key,
                              protocol.name, fmt::join(protocol.axis_names(), " and ")));
}

}  // namespace

SlotOption slot_option(const std::string& column) {
  const size_t dot = column.find('.');
  return dot == column.npos ? SlotOption{} : SlotOption{column.substr(0, dot), column.substr(dot + 1)};
}

SlotChoice* slot_with(SlotChoices& slots, std::string_view part) {
  for (const SlotKind& kind : slot_kinds()) {
    if ((slots.*kind.slot).name == part) return &(slots.*kind.slot);
  }
  return nullptr;
}

std::vector<DeclaredParam> shared_axes() {
  const auto axis = [](std::string_view name, std::string help) {
    return DeclaredParam{
        .key = std::string(name), .type = "axis", .fallback = "none", .help = std::move(help), .value = {}};
  };
  return {axis(kTokensAxis, "a sample's length, of data that states none (protocols that read data)"),
          axis(kAllocationAxis, "how budgets are divided, of policies that state none: kvlab list allocations"),
          axis(kAdmissionAxis, "which tokens outlive a window, of policies that state none: kvlab list admissions"),
          axis(kSelectionAxis,
               "which pages a step of one token reads, of policies that state none: kvlab list selections")};
}

AxisOwners::AxisOwners(const Spec& spec) : spec_(spec) {
  for (const Component& policy : spec.policies) policy_options_.push_back(describe_policy(policy.name));
  for (const Axis& axis : spec.axes) {
    for (const GivenParam& param : axis.points.front()) owners_[param.key] = classify(param);
  }
}

bool AxisOwners::is_of_data(const std::string& column) const {
  return owner(column) == AxisOwner::kTokens || owner(column) == AxisOwner::kTask;
}

bool AxisOwners::applies_to_policy(size_t policy, const std::string& column) const {
  return lists(policy_options_[policy], column);
}

bool AxisOwners::applies_to_task(const DataSpec& data, const std::string& column) {
  if (data.kind != DataKind::kTask) return false;
  const std::vector<std::string>& known = find_task(data.source.text).options;
  return std::find(known.begin(), known.end(), column) != known.end();
}

AxisOwner AxisOwners::classify(const GivenParam& param) const {
  const std::string& column = param.key;
  if (spec_.protocol->find_axis(column)) return AxisOwner::kProtocol;
  if (const ProtocolKey* key = spec_.protocol->find_key_of_axis(column)) return check_protocol_key(param, key->name);
  if (column == kTokensAxis && spec_.protocol->reads_data) return check_tokens(param);
  if (column == kAllocationAxis) return check_slots(param, &SlotChoices::allocation, AxisOwner::kAllocation);
  if (column == kAdmissionAxis) return check_slots(param, &SlotChoices::admission, AxisOwner::kAdmission);
  if (column == kSelectionAxis) return check_slots(param, &SlotChoices::selection, AxisOwner::kSelection);
  if (const SlotOption axis = slot_option(column); !axis.part.empty()) return check_slot_option(param, axis);
  bool task = false, policy = false;
  for (const DataSpec& data : spec_.data) {
    if (!applies_to_task(data, column)) continue;
    task = true;
    if (sets(data.options, column)) refuse_twice(param, data.name);
  }
  for (size_t p = 0; p < spec_.policies.size(); ++p) {
    if (!applies_to_policy(p, column)) continue;
    policy = true;
    if (sets(spec_.policies[p].options, column)) refuse_twice(param, spec_.policies[p].label);
  }
  if (task && policy) {
    throw UserError(fmt::format("{}: axes: '{}' is an option of both a task and a policy, expected one of them",
                                param.where, column));
  }
  if (task) return AxisOwner::kTask;
  if (policy) return AxisOwner::kPolicy;
  refuse_of_another(param, *spec_.protocol);
  refuse_unknown(param);
}

AxisOwner AxisOwners::check_protocol_key(const GivenParam& param, const std::string& key) const {
  if (sets(spec_.options_of(key), param.key)) refuse_twice(param, key);
  return AxisOwner::kProtocolKey;
}

// A slot that a policy of the spec fills itself is nothing for an axis.
AxisOwner AxisOwners::check_slots(const GivenParam& param, SlotChoice SlotChoices::*slot, AxisOwner owner) const {
  for (const Component& policy : spec_.policies) {
    if ((policy.slots.*slot).name != (SlotChoices{}.*slot).name) refuse_twice(param, policy.label);
  }
  return owner;
}

AxisOwner AxisOwners::check_slot_option(const GivenParam& param, const SlotOption& axis) const {
  const auto parts = slot_parts();
  const auto found = parts.find(axis.part);
  if (found == parts.end() || !lists(found->second, axis.option)) refuse_unknown(param);
  for (const Component& policy : spec_.policies) {
    SlotChoices slots = policy.slots;
    const SlotChoice* slot = slot_with(slots, axis.part);
    if (slot && sets(slot->options, axis.option)) refuse_twice(param, policy.label);
  }
  return AxisOwner::kSlotOption;
}

std::map<std::string, std::vector<DeclaredParam>> AxisOwners::slot_parts() const {
  std::map<std::string, std::vector<DeclaredParam>> parts;
  for (const SlotKind& kind : slot_kinds()) {
    std::vector<std::string> names;
    for (const Component& policy : spec_.policies) names.push_back((policy.slots.*kind.slot).name);
    for (const Axis& axis : spec_.axes) {
      for (const auto& point : axis.points) {
        for (const GivenParam& param : point) {
          if (param.key == kind.name) names.push_back(param.text);
        }
      }
    }
    const std::vector<std::string> known = kind.known();
    for (const std::string& name : names) {
      if (std::find(known.begin(), known.end(), name) == known.end()) continue;  // refused where it is used
      parts[name] = kind.describe(name);
    }
  }
  return parts;
}

AxisOwner AxisOwners::check_tokens(const GivenParam& param) const {
  if (!spec_.traces.empty()) {
    throw UserError(fmt::format("{}: axes: a trace has its own length, expected no axis 'tokens'", param.where));
  }
  for (const DataSpec& data : spec_.data) {
    if (data.tokens) refuse_twice(param, data.name);
  }
  return AxisOwner::kTokens;
}

std::vector<std::string> AxisOwners::known_axes() const {
  std::vector<std::string> known = spec_.protocol->axis_names();
  const auto add = [&](const std::string& name) {
    if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
  };
  for (const ProtocolKey& key : spec_.protocol->keys) {
    if (!key.as_axes) continue;
    for (const DeclaredParam& option : key.options()) add(option.key);
  }
  for (const DeclaredParam& axis : shared_axes()) {
    if (axis.key != kTokensAxis || spec_.protocol->reads_data) add(axis.key);
  }
  for (const DataSpec& data : spec_.data) {
    if (data.kind != DataKind::kTask) continue;
    for (const std::string& option : find_task(data.source.text).options) add(option);
  }
  for (const auto& options : policy_options_) {
    for (const DeclaredParam& option : options) add(option.key);
  }
  for (const auto& [part, options] : slot_parts()) {
    for (const DeclaredParam& option : options) add(part + "." + option.key);
  }
  return known;
}

void AxisOwners::refuse_unknown(const GivenParam& param) const {
  const std::vector<std::string> known = known_axes();
  throw UserError(
      fmt::format("{}: axes: '{}' is no option of this experiment's data or policies{} (expected one of: {})",
                  param.where, param.key, did_you_mean(param.key, known), fmt::join(known, ", ")));
}

}  // namespace kv
