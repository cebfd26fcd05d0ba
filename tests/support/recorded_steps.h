#pragma once

#include "sim/policy/policy.h"

namespace kv::ref {

// Generates by the tiny Llama of tests/data, on the CPU, from recordings and eagerly: both have to say and see the
// same. What uploads inside a recorded step ends the program there (kernels/cpu/backend.cpp); a slot that asks for the
// host at every step (Needs::host_steps) is never recorded.
void expect_recorded_as_eager(const SlotChoices& slots);

}  // namespace kv::ref
