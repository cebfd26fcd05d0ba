#include "tests/ref/select_top.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace kv::ref {

std::vector<uint8_t> select_top(const std::vector<float>& scores, const std::vector<float>& ties,
                                const std::vector<int32_t>& positions, int count, int sinks, int recent) {
  const int n = static_cast<int>(positions.size());
  const auto rank = [&](int slot) {
    // Class first: sinks (older first), recents (newer first), the rest by score, tie, newness.
    if (positions[slot] < sinks) return std::tuple(0, double(slot), 0.0, 0);
    if (slot >= n - recent) return std::tuple(1, double(-slot), 0.0, 0);
    return std::tuple(2, -double(scores[slot]), ties.empty() ? 0.0 : -double(ties[slot]), -slot);
  };
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return rank(a) < rank(b); });
  std::vector<uint8_t> keep(n);
  for (int i = 0; i < std::min(n, count); ++i) keep[order[i]] = 1;
  return keep;
}

}  // namespace kv::ref
