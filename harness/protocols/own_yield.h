#pragma once

#include "harness/protocols/protocol.h"

namespace kv {

// Of a workload whose texts the model wrote itself: how many attempts became traces, and each that did not, by its
// number, with its repetition rate and the reason. Nothing for other data.
Remarks own_yield(const UnitBatch& batch);

}  // namespace kv
