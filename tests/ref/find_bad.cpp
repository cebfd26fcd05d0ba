#include "tests/ref/find_bad.h"

#include <cmath>

namespace kv::ref {

int64_t first_bad_score(const std::vector<float>& scores, const std::vector<float>& ties,
                        const std::vector<int32_t>& positions, int sinks, int recent) {
  const auto length = static_cast<int64_t>(positions.size());
  for (int64_t slot = 0; slot < length; ++slot) {
    const auto at = static_cast<size_t>(slot);
    if (positions[at] < sinks || slot >= length - recent) continue;
    if (!std::isfinite(scores[at]) || (!ties.empty() && !std::isfinite(ties[at]))) return slot;
  }
  return -1;
}

}  // namespace kv::ref
