#include "sim/budget_profile.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"

namespace kv {

size_t ratio_index(double removed_fraction) {
  return static_cast<size_t>(std::clamp<long>(std::lround(100 * removed_fraction) - 1, 0, kProfileRatios - 1));
}

std::span<const float> BudgetProfile::at(double removed_fraction) const {
  KV_CHECK(removed.size() == kProfileRatios * heads());
  return std::span(removed).subspan(ratio_index(removed_fraction) * heads(), heads());
}

std::vector<double> kept_shares(std::span<const float> removed, double least) {
  std::vector<double> shares;
  for (const float ratio : removed) shares.push_back(std::max(1.0 - ratio, least));
  return shares;
}

}  // namespace kv
