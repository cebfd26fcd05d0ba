#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "harness/spec/case.h"
#include "harness/spec/spec.h"
#include "sim/learned/learner.h"
#include "sim/learned/training.h"
#include "sim/policy/policy.h"

namespace kv {

// The protocol's name.
inline constexpr std::string_view kTrainProtocol = "train";
// The key of a spec that says how it learns: options of every training, and of the learner (Learner::read).
inline constexpr std::string_view kLearnKey = "learn";

// Both, as the spec and the case's point of the axes have them; the learner keeps its own.
TrainingOptions read_training(const Spec& spec, const Case& policy_case, Learner& learner);

// Steps of all these trainings.
int64_t steps_of(const Spec& spec, std::span<const Case> cases);

// Of the policy's slot that learns, which the protocol has found: the first that does.
Learner& learner_of(Policy& policy);
// What that slot is filled with, as weights name whose they are: "foresight-kv", "wg-kv".
std::string learner_name(const Policy& policy);

}  // namespace kv
