#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kv {

// Entries that an event never takes: positions [0, sinks) and the newest `recent` slots.
struct Protection {
  int sinks = 0;
  int recent = 0;

  bool operator==(const Protection&) const = default;
};

// Whether an event can never take slot `slot` of a row's `positions`.
inline bool is_protected(const Protection& protection, std::span<const int32_t> positions, size_t slot) {
  return positions[slot] < protection.sinks || slot + static_cast<size_t>(protection.recent) >= positions.size();
}

}  // namespace kv
