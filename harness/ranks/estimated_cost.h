#pragma once

#include <cstddef>
#include <vector>

#include "harness/spec/case.h"

namespace kv {

// How long a sample of a workload takes under all its policies beside those of others of its model, in no unit: from
// the length of its text alone.
double estimated_cost(const Workload& workload);

// Indices of a grid's workloads in the order in which ranks take them: those of the largest pieces first, however many
// these are, but those of a model together, since to open another takes long.
std::vector<size_t> largest_first(const std::vector<Workload>& workloads);

}  // namespace kv
