#pragma once

#include <cstddef>

#include "harness/protocols/unit.h"

namespace kv {

// The largest power of two up to 16 for which `bytes` is at most half of `device_bytes`; 1 where not even that fits.
// The other half is for what ops take for a moment and metrics keep. More than 16 was never measured to be faster.
int largest_batch(size_t device_bytes, const BatchBytes& bytes);

// Samples that run together where the spec says `batch: auto`. 1 where the host runs the ops, whose rows are the same
// for any batch, and for traces. Elsewhere largest_batch() of the device's memory, the model's weights included: a
// function of model, lengths, policies and the device's size, not of what is free or of the number of samples, so that
// a spec that is run again with more samples finds the units of the batches that were full. `workload` has all its
// samples.
int auto_batch(const UnitBatch& workload);

}  // namespace kv
