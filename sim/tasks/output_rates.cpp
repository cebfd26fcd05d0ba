#include "sim/tasks/output_rates.h"

#include <algorithm>
#include <array>
#include <set>

namespace kv {

double repetition_rate(std::span<const int32_t> ids) {
  constexpr size_t kN = 4;
  if (ids.size() <= kN) return 0;
  std::set<std::array<int32_t, kN>> seen;
  const size_t grams = ids.size() - kN + 1;
  for (size_t i = 0; i < grams; ++i) seen.insert({ids[i], ids[i + 1], ids[i + 2], ids[i + 3]});
  return static_cast<double>(grams - seen.size()) / static_cast<double>(grams);
}

bool is_truncated(std::span<const int32_t> ids, std::span<const int32_t> stop_ids) {
  return ids.empty() || std::find(stop_ids.begin(), stop_ids.end(), ids.back()) == stop_ids.end();
}

}  // namespace kv
