#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

// One row by a full sort of the documented order. `ties` may be empty.
std::vector<uint8_t> select_top(const std::vector<float>& scores, const std::vector<float>& ties,
                                const std::vector<int32_t>& positions, int count, int sinks, int recent);

}  // namespace kv::ref
