#pragma once

#include <cstdint>
#include <vector>

#include "sim/policy/policy.h"

namespace kv::ref {

// Entries of [layer, head] (2 of each) after a block of 40 tokens and the sweep that it brings, without a policy that
// evicts.
std::vector<int32_t> entries_left(const SlotChoice& admission);

}  // namespace kv::ref
