#pragma once

#include <cstddef>
#include <vector>

#include "harness/spec/case.h"

namespace kv {

// How long a workload takes beside others of its model, in no unit: from the number and the length of its texts alone.
double estimated_cost(const Workload& workload);

// Indices of a grid's workloads in the order in which ranks take them: largest first, but those of a model together,
// since to open another takes long.
std::vector<size_t> largest_first(const std::vector<Workload>& workloads);

}  // namespace kv
