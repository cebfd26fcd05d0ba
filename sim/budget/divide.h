#pragma once

#include <cstdint>
#include <span>

#include "sim/policy/allocation.h"

namespace kv {

// Divides the total of one sequence in proportion to weights [layers · kv_heads] (sim/budget/apportion.h) into its
// places of counts [layers, rows].
void divide(const AllocateArgs& args, int sequence, std::span<const double> weights, std::span<int32_t> counts);

}  // namespace kv
