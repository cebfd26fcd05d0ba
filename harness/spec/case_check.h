#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "harness/spec/case.h"
#include "harness/spec/spec.h"
#include "sim/policy/policy.h"

namespace kv {

// The axis whose values name allocations.
inline constexpr std::string_view kAllocationAxis = "allocation";
// That whose values name admissions.
inline constexpr std::string_view kAdmissionAxis = "admission";
// That whose values name selections.
inline constexpr std::string_view kSelectionAxis = "selection";

// A case that is being checked, with all that a complaint about it may name.
struct CaseCheck {
  const Spec& spec;
  int model = 0;  // index into Spec::models
  const Case& candidate;
  const Policy& policy;               // its own
  std::span<const GivenParam> point;  // of the axes, one a column

  const Component& component() const { return spec.policies[static_cast<size_t>(candidate.policy)]; }
  // Where a complaint about what one of these axes sets belongs: there, or where none does to the policy.
  std::string where_of(std::initializer_list<std::string_view> axes) const;
  std::string where_of_oracle() const;
  // What an oracle asks for, and whose wish it is.
  std::string wish_of_oracle() const;
  // "<where>: policy '<label>' under protocol <name> <what>", by default where the policy stands.
  [[noreturn]] void refuse(std::string_view what, const std::string& where = "") const;

  // Decode-time pruning to `budget` every `interval` tokens (sim/policy/policy.h), each with the place of its axis.
  // Returns the interval that the policy really runs at.
  int check_pruning(int budget, int interval) const;
};

}  // namespace kv
