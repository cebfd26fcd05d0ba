#include "sim/policy/policy_order.h"

#include <algorithm>
#include <numeric>

namespace kv {

std::vector<int32_t> policy_order(const Protection& protection, std::span<const int32_t> positions,
                                  std::span<const float> scores, std::span<const float> ties) {
  const auto category = [&](int32_t slot) {
    if (positions[static_cast<size_t>(slot)] < protection.sinks) return 0;
    return is_protected(protection, positions, static_cast<size_t>(slot)) ? 1 : 2;
  };
  std::vector<int32_t> order(positions.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int of_a = category(a);
    const int of_b = category(b);
    if (of_a != of_b) return of_a < of_b;
    if (of_a == 0) return a < b;
    if (of_a == 1) return a > b;
    const auto x = static_cast<size_t>(a), y = static_cast<size_t>(b);
    if (scores[x] != scores[y]) return scores[x] > scores[y];
    if (!ties.empty() && ties[x] != ties[y]) return ties[x] > ties[y];
    return a > b;
  });
  return order;
}

}  // namespace kv
