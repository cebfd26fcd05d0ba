#pragma once

#include "harness/spec/case.h"

namespace kv {

// How long a workload takes beside others of its model, in no unit: from the number and the length of its texts alone.
double estimated_cost(const Workload& workload);

}  // namespace kv
