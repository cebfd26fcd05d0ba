#pragma once

#include <string_view>

#include "harness/spec/spec.h"
#include "sim/learned/learner.h"
#include "sim/learned/training.h"
#include "sim/policy/policy.h"

namespace kv {

// The protocol's name.
inline constexpr std::string_view kTrainProtocol = "train";
// The key of a spec that says how it learns: options of every training, and of the learner (Learner::read).
inline constexpr std::string_view kLearnKey = "learn";

// Both, as the spec has them; the learner keeps its own.
TrainingOptions read_training(const Spec& spec, Learner& learner);

// Of the policy's slot that learns, which the protocol has found.
Learner& learner_of(Policy& policy);

}  // namespace kv
