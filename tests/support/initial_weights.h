#pragma once

#include "sim/learned/learner.h"
#include "sim/policy/policy.h"

namespace kv::ref {

// A policy that learns decides by what its training would begin with; false, and nothing done, for one that does not.
inline bool use_initial_weights(Policy& policy, const SourceInfo& info) {
  bool learns = false;
  for (const PolicySlot& place : policy.slots()) {
    Learner* const learner = place.slot.learner();
    if (!learner) continue;
    learner->use(info, learner->initial(info, 1));
    learns = true;
  }
  return learns;
}

}  // namespace kv::ref
