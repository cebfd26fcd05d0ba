#pragma once

#include "sim/cache/cache.h"
#include "sim/policy/policy.h"

namespace kv {

// A layer of the cache; what belongs to a block or a scorer is left empty.
LayerView layer_view(Backend& backend, const SourceInfo& info, Cache& cache, int layer);
// To read: entry columns are left out.
LayerView layer_view(Backend& backend, const SourceInfo& info, const Cache& cache, int layer);

}  // namespace kv
