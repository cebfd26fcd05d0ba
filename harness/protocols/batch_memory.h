#pragma once

#include "harness/protocols/unit.h"

namespace kv {

// Protocol::memory of what is replayed, and of what is answered. No case of the workload takes more: every bound is
// that of its longest sample under the full cache, with what the policies' scorers and the full-cache pass keep of it.
// Both throw UserError where the workload's samples cannot be had.
BatchBytes replay_memory(const UnitBatch& workload);
// Beside the contexts' cache stand a case's copy of it and that copy's for a question; where a context is pruned while
// it is read, a copy of what is left or, as it grows by the last question, half of it more than itself.
BatchBytes answer_memory(const UnitBatch& workload);

}  // namespace kv
