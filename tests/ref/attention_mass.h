#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

// Mass that one query puts on the entries whose position is in `set`, softmax over those not newer than
// `query_position`.
double attention_mass(const std::vector<float>& query, const std::vector<float>& keys,
                      const std::vector<int32_t>& positions, int query_position, const std::vector<int32_t>& set,
                      double scale);

}  // namespace kv::ref
