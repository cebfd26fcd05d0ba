#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/spec/spec.h"
#include "sim/policy/params.h"

namespace kv {

// What an axis changes.
enum class AxisOwner {
  kProtocol,
  kProtocolKey,
  kTokens,
  kTask,
  kPolicy,
  kAllocation,
  kAdmission,
  kSelection,
  kSlotOption
};

// An axis "local.window": an option of what fills a slot beside the scorer, `local`.
struct SlotOption {
  std::string part{}, option{};
};
// Empty where the name has no dot.
SlotOption slot_option(const std::string& column);
// The slot that is filled with it; null: none.
SlotChoice* slot_with(SlotChoices& slots, std::string_view part);

// Axes that belong to no protocol, policy or task.
std::vector<DeclaredParam> shared_axes();

// Which columns of a spec's axes go where.
class AxisOwners {
 public:
  // UserError for an axis that nothing takes, that two take, or whose value is set elsewhere, too. The names of the
  // spec's policies and tasks are known to be good.
  explicit AxisOwners(const Spec& spec);

  AxisOwner owner(const std::string& column) const { return owners_.at(column); }
  // Whether it changes what a workload reads.
  bool is_of_data(const std::string& column) const;
  bool applies_to_policy(size_t policy, const std::string& column) const;
  static bool applies_to_task(const DataSpec& data, const std::string& column);

 private:
  AxisOwner classify(const GivenParam& param) const;
  AxisOwner check_protocol_key(const GivenParam& param, const std::string& key) const;
  AxisOwner check_slots(const GivenParam& param, SlotChoice SlotChoices::*slot, AxisOwner owner) const;
  AxisOwner check_slot_option(const GivenParam& param, const SlotOption& axis) const;
  AxisOwner check_tokens(const GivenParam& param) const;
  // What fills the slots beside the scorer at some point: by name, its options.
  std::map<std::string, std::vector<DeclaredParam>> slot_parts() const;
  std::vector<std::string> known_axes() const;
  [[noreturn]] void refuse_unknown(const GivenParam& param) const;

  const Spec& spec_;
  std::vector<std::vector<DeclaredParam>> policy_options_;
  std::map<std::string, AxisOwner> owners_;
};

}  // namespace kv
