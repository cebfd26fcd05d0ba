#include "harness/metrics/policy_order.h"

#include <algorithm>
#include <numeric>

#include "harness/metrics/residents.h"

namespace kv {

std::vector<int32_t> policy_order(const Protection& protection, std::span<const int32_t> positions,
                                  std::span<const float> scores) {
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
    const float x = scores[static_cast<size_t>(a)];
    const float y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a > b;
  });
  return order;
}

std::vector<float> importance_in_order(const EvictionView& view, int row, std::span<const int32_t> positions,
                                       std::span<const float> importance) {
  const auto scores =
      to_host(view.layer.backend, view.scores + row * view.pitch, static_cast<int64_t>(positions.size()));
  std::vector<float> in_order;
  in_order.reserve(positions.size());
  for (const int32_t slot : policy_order(view.protection, positions, scores)) {
    in_order.push_back(importance[static_cast<size_t>(positions[static_cast<size_t>(slot)])]);
  }
  return in_order;
}

}  // namespace kv
