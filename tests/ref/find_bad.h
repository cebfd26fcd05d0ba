#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

// The first of one row's entries, in their order, whose score (or tie, if there are any) is not finite, among those
// that are neither at a position below `sinks` nor of the newest `recent`; −1 where there is none.
int64_t first_bad_score(const std::vector<float>& scores, const std::vector<float>& ties,
                        const std::vector<int32_t>& positions, int sinks, int recent);

}  // namespace kv::ref
