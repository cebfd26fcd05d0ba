#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/observer.h"
#include "sim/policy.h"

namespace kv {

// Slots of one row in the order in which a policy gives them up, from the last to leave to the first: protected
// entries stay longest (sinks by age, then recent ones, newest first), the others by score, equal scores newer first (a
// scorer's own second key is not known here). The first b are what the policy keeps of this row at count b (002's
// M^π(b); where the order puts protected entries: policies.md 2.7 c). positions: ascending; scores of protected entries
// are not read.
std::vector<int32_t> policy_order(const Protection& protection, std::span<const int32_t> positions,
                                  std::span<const float> scores);

// The importance of a row's entries in that order, at an event: the gains of keeping one entry more
// (sim/budget_hull.h). importance: by position.
std::vector<float> importance_in_order(const EvictionView& view, int row, std::span<const int32_t> positions,
                                       std::span<const float> importance);

}  // namespace kv
