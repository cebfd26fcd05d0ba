#pragma once

#include <string>

#include "sim/policy/policy.h"

namespace kv::ref {

// Generates by the tiny Llama of tests/data from recordings and eagerly: both have to say and see the same. What
// uploads inside a recorded step ends the program there, on the CPU too (kernels/cpu/backend.cpp); a slot that asks for
// the host at every step (Needs::host_steps) is never recorded.
void expect_recorded_as_eager(const std::string& backend, const SlotChoices& slots);

}  // namespace kv::ref
