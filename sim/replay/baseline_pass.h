#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sim/policy/baseline.h"
#include "sim/source/source.h"

namespace kv {

// Tokens a step of the full-cache pass where no attention statistics are wanted.
inline constexpr int kPlainBlock = 1024;

// The full-cache pass that a Baseline holds.
// Throws UserError where the statistics would take more than 512 blocks: memory stays far from T x T a head.
Baseline compute_baseline(Backend& backend, Source& source, std::span<const std::span<const int32_t>> sequences,
                          const BaselineNeeds& needs);

// Bytes on the device of the Baseline of so many sequences of `tokens` each.
size_t baseline_bytes(const Backend& backend, const SourceInfo& info, const BaselineNeeds& needs, int64_t sequences,
                      int64_t tokens);

}  // namespace kv
