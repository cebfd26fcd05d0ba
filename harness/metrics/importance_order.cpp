#include "harness/metrics/importance_order.h"

#include "harness/metrics/residents.h"
#include "sim/policy/policy_order.h"

namespace kv {

std::vector<float> importance_in_order(const EvictionView& view, int row, std::span<const int32_t> positions,
                                       std::span<const float> importance) {
  const auto scores = to_host(view.layer.backend, view.scores.row(row), static_cast<int64_t>(positions.size()));
  std::vector<float> in_order;
  in_order.reserve(positions.size());
  for (const int32_t slot : policy_order(view.protection, positions, scores)) {
    in_order.push_back(importance[static_cast<size_t>(positions[static_cast<size_t>(slot)])]);
  }
  return in_order;
}

}  // namespace kv
