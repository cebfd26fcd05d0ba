#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/policy/protection.h"

namespace kv {

// Slots of one row in the order in which a policy gives them up, from the last to leave to the first: protected
// entries stay longest (sinks by age, then recent ones, newest first), the others by score, then by the scorer's second
// key where it has one, then newer first (kernels/select_top.h). The first b are what the policy keeps of this row at
// count b (002's M^π(b), which does not say where protected entries stand). positions: ascending; scores of
// protected entries are not read.
std::vector<int32_t> policy_order(const Protection& protection, std::span<const int32_t> positions,
                                  std::span<const float> scores, std::span<const float> ties = {});

}  // namespace kv
