#pragma once

#include <cstdint>
#include <span>

#include "sim/cache/cache.h"
#include "sim/policy/observer.h"
#include "sim/policy/policy.h"
#include "sim/replay/due.h"
#include "sim/replay/ranker.h"

namespace kv {

struct CutArgs {
  Backend& backend;
  const SourceInfo& info;
  Cache& cache;
  Policy& policy;
  const Ranker& ranker;                    // with the scores of every layer
  std::span<const Ranker> onlookers = {};  // whose scores observers get to see
  const Due& due;
  std::span<const int64_t> totals;     // [sequences] entries that a due one keeps, over all layers and heads
  const Capacity* capacity = nullptr;  // that was passed, where the totals are what it leaves
  int interval = 0;                    // as in BatchShape
  std::span<Observer* const> observers = {};
};

// Whether an event that leaves `total` entries of a sequence would remove some, or might; never where that is below 0.
// A capacity's fall only where it is passed, whatever else the allocation goes by.
bool is_due(const Policy& policy, const Cache& cache, int sequence, int64_t total, const Capacity* capacity = nullptr);

// An event, after every layer was scored: divides the budget over layers and heads, selects (where the allocation has
// not: Allocation::decides_entries) and evicts. Masks stay on the backend; the host gets the new lengths of all rows,
// once, and KV_CHECKs that exactly what was asked stays. Adds all that it took, the host's part too and observers
// apart, to `seconds`.
void cut(const CutArgs& args, double& seconds);

}  // namespace kv
