#pragma once

#include <cstdint>

#include "sim/cache/cache.h"
#include "sim/policy/capacity.h"

namespace kv {

// A cache against a capacity (sim/policy/capacity.h), sequence by sequence, as the host knows it: nothing in it has
// expired. `done`: tokens that the sequence has processed.

// Entries that the capacity leaves the sequence, over all layers and heads: all of them where it is not passed.
int64_t entries_left(const Cache& cache, int sequence, int32_t done, const Capacity& capacity);

// With so many more tokens the capacity may be passed, with fewer it is not: at least 1.
int32_t tokens_until_full(const Cache& cache, int sequence, int32_t done, const Capacity& capacity);

}  // namespace kv
