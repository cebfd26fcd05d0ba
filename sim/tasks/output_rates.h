#pragma once

#include <cstdint>
#include <span>

namespace kv {

// Share of the output's n-grams (n = 4) that occurred before in it, overlapping ones included; 0 below n + 1 ids. A
// text that repeats one token forever tends to 1.
double repetition_rate(std::span<const int32_t> ids);

// Whether the output was cut by its length: its last id is none of `stop_ids`. An empty output was cut.
bool is_truncated(std::span<const int32_t> ids, std::span<const int32_t> stop_ids);

}  // namespace kv
