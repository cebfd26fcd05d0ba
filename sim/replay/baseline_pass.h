#pragma once

#include <cstdint>
#include <span>

#include "sim/policy/baseline.h"
#include "sim/source/source.h"

namespace kv {

// The full-cache pass that a Baseline holds.
// Throws UserError where the statistics would take more than 512 blocks: memory stays far from T x T a head.
Baseline compute_baseline(Backend& backend, Source& source, std::span<const std::span<const int32_t>> sequences,
                          const BaselineNeeds& needs);

}  // namespace kv
