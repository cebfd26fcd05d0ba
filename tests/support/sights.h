#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "tests/support/policy_runs.h"

namespace kv::ref {

// By (sequence, layer, head), the positions that each token's query sees.
using Sights = std::map<std::tuple<int, int, int>, std::map<int, std::set<int32_t>>>;

// Of an admission without a policy that evicts, token by token; sequence s has lengths[s] tokens of sample s. Expiries
// are read where they are stored: for the CPU backend.
Sights sights(Source& source, Backend& backend, const SlotChoice& admission, const std::vector<int32_t>& lengths);

}  // namespace kv::ref
