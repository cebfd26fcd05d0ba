#pragma once

#include <bit>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cpu/page_gather.h"

// The order in which the selections rank entries, and the entries that they spare.

namespace kv::cpu {

// Unsigned integers in the order of the floats; −0 and +0 are one value.
inline uint32_t ordered(float value, bool may_be_nan = false) {
  KV_CHECK(may_be_nan || value == value);
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Score first, then the tie where there are ties.
inline uint64_t ordered(const float* scores, const float* ties, int64_t slot, bool may_be_nan = false) {
  return uint64_t{ordered(scores[slot], may_be_nan)} << 32 | (ties ? ordered(ties[slot], may_be_nan) : 0);
}

// How many entries of a row have positions < sinks. Positions ascend, so they lead.
inline int64_t leading_sinks(const PagedView& cache, int64_t row, int32_t sinks) {
  const int64_t length = cache.lengths[row];
  int64_t count = 0;
  while (count < length && cache.positions[pool_index(cache, row, count)] < sinks) ++count;
  return count;
}

}  // namespace kv::cpu
