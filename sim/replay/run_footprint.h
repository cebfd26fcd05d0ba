#pragma once

#include <cstdint>
#include <span>

#include "sim/model/footprint.h"
#include "sim/policy/policy.h"
#include "sim/replay/resident_bound.h"
#include "sim/source/source.h"

namespace kv {

// What a run's memory depends on, beside its model and policy.
struct RunShape {
  int64_t sequences = 0;
  int64_t pages = 0;    // of all layers and KV heads, at the peak of every sequence
  int64_t longest = 0;  // entries of one head at most
  int64_t tokens = 0;   // of the largest block
  int64_t logits = 0;   // f32 values held
  int interval = 0;     // as in BatchShape
};

// resident [sequences]: of the whole run.
RunShape run_shape(std::span<const ResidentBound> resident, int64_t tokens);

// Those to take before anything comes. What admission turns away takes no memory, and how much that is shows as it
// goes: then none, and more as entries come.
int64_t pages_at_once(const Policy& policy, const RunShape& shape);

// Without the momentary scratch of the ops. No less than what the run takes (under an admission, whose pool grows by
// eighths as it must, up to an eighth more may be taken than hold anything), and under the uniform allocation just that
// for the cache. Onlookers are as in LoopArgs.
Footprint run_footprint(const Backend& backend, const Source& source, const Policy& policy, const RunShape& shape,
                        std::span<Policy* const> onlookers = {});

}  // namespace kv
