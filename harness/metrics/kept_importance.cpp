#include "harness/metrics/kept_importance.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/check.h"

namespace kv {

KeptImportance judge_kept(std::span<const float> importance, std::span<const uint8_t> keep,
                          std::vector<float>& scratch) {
  KV_CHECK(importance.size() == keep.size());
  KeptImportance out;
  for (size_t i = 0; i < importance.size(); ++i) {
    out.total += importance[i];
    if (!keep[i]) continue;
    out.kept += importance[i];
    ++out.entries;
  }
  scratch.assign(importance.begin(), importance.end());
  const auto end = scratch.begin() + out.entries;
  std::nth_element(scratch.begin(), end, scratch.end(), std::greater<>());
  // The same set summed in another order may fall short of `kept` by a rounding.
  out.best = std::max(out.kept, std::accumulate(scratch.begin(), end, 0.0));
  if (out.entries == 0) return out;

  const float cut = *std::min_element(scratch.begin(), end);
  int64_t above = 0, kept_above = 0, kept_at = 0;
  for (size_t i = 0; i < importance.size(); ++i) {
    const float value = importance[i];
    above += value > cut ? 1 : 0;
    if (value > cut && !keep[i]) out.missed += value;
    if (!keep[i]) continue;
    kept_above += value > cut ? 1 : 0;
    kept_at += value == cut ? 1 : 0;
    if (value < cut) out.false_positives += value;
  }
  const int64_t best_at = out.entries - above;
  const int64_t hits_at = std::min(kept_at, best_at);
  out.hits = kept_above + hits_at;
  out.missed += static_cast<double>(cut) * static_cast<double>(best_at - hits_at);
  out.false_positives += static_cast<double>(cut) * static_cast<double>(kept_at - hits_at);
  return out;
}

}  // namespace kv
