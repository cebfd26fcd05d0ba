#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/policy/policy.h"

namespace kv {

// A slot that a policy has beside its scorer, as specs name it: a key of a policy's entry, and an axis.
struct SlotKind {
  std::string_view name;  // "admission"
  SlotChoice SlotChoices::*slot;
  std::vector<std::string> (*known)();  // what may fill it
  std::vector<DeclaredParam> (*describe)(std::string_view filling);
};

const std::vector<SlotKind>& slot_kinds();

}  // namespace kv
