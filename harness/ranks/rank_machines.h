#pragma once

#include <vector>

#include "harness/manifest.h"
#include "harness/ranks/ranks.h"

namespace kv {

// Collective: where each rank runs, for the manifest; none of one by itself.
std::vector<RankMachine> gather_machines(Ranks& ranks, const Facts& accelerator);

}  // namespace kv
