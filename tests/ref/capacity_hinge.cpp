#include "tests/ref/capacity_hinge.h"

#include <algorithm>
#include <cstddef>

namespace kv::ref {

CapacityHinge capacity_hinge(const std::vector<double>& occupancy, const std::vector<int64_t>& positions,
                             const Capacity& capacity) {
  CapacityHinge result{.gradient = std::vector<double>(occupancy.size(), 0.0)};
  const auto pooled = static_cast<double>(capacity.pooled), most = pooled * static_cast<double>(capacity.capacity);
  for (size_t i = 0; i < occupancy.size(); ++i) {
    if (occupancy[i] <= most) continue;
    const auto t = static_cast<double>(positions[i]);
    const double against = std::max(1.0, pooled * t - most);
    result.loss += (occupancy[i] - most) / against;
    result.gradient[i] = 1 / against;
    ++result.overfull;
  }
  if (result.overfull == 0) return result;
  const auto counted = static_cast<double>(result.overfull);
  result.loss /= counted;
  for (double& g : result.gradient) g /= counted;
  return result;
}

}  // namespace kv::ref
