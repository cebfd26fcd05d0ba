#include "sim/budget/profile.h"

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

BudgetProfile laid_over(const BudgetProfile& profile, int layers, int kv_heads) {
  KV_CHECK(layers > 0 && kv_heads > 0 && profile.removed.size() == kProfileRatios * profile.heads());
  BudgetProfile out = profile;
  out.layers = layers;
  out.kv_heads = kv_heads;
  out.removed.clear();
  for (size_t ratio = 0; ratio < kProfileRatios; ++ratio) {
    const float* from = profile.removed.data() + ratio * profile.heads();
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < kv_heads; ++head) {
        const int profile_layer = layer * profile.layers / layers, profile_head = head * profile.kv_heads / kv_heads;
        out.removed.push_back(from[profile_layer * profile.kv_heads + profile_head]);
      }
    }
  }
  return out;
}

std::vector<double> kept_shares(std::span<const float> removed, double least) {
  std::vector<double> shares;
  for (const float ratio : removed) shares.push_back(std::max(1.0 - ratio, least));
  return shares;
}

}  // namespace kv
