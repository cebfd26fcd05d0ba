#pragma once

#include "sim/learned/learner.h"
#include "sim/policy/policy.h"

namespace kv::ref {

// What of a policy learns decides by what its training would begin with.
inline void use_initial_weights(Policy& policy, const SourceInfo& info) {
  for (const PolicySlot& place : policy.slots()) {
    if (Learner* const learner = place.slot.learner()) learner->use(info, learner->initial(info, 1));
  }
}

}  // namespace kv::ref
