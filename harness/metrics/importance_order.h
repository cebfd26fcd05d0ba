#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/policy/observer.h"

namespace kv {

// The importance of a row's entries in the policy's order (sim/policy/policy_order.h), at an event: the gains of
// keeping one entry more (sim/budget/hull.h). The scorer's second key is not known here: equal scores stand newer
// first. positions: ascending; importance: by position.
std::vector<float> importance_in_order(const EvictionView& view, int row, std::span<const int32_t> positions,
                                       std::span<const float> importance);

}  // namespace kv
