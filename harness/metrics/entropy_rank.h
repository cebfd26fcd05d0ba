#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/metrics/metric.h"

namespace kv {

// Marks the round(fraction · n) positions of [first, last) with the highest entropy, n = last − first (half rounds up).
// Equal entropies: the newer position counts as the higher. The result has entropy.size() marks; 0 outside the range.
std::vector<uint8_t> high_entropy(std::span<const float> entropy, int32_t first, int32_t last, double fraction);

// The options that the two metrics on the entropy split share.
struct EntropySplit {
  double fraction = 0.2;
  bool tail = false;

  static EntropySplit from(Params& params);
  // The predicting positions [first, T − 1) that are split: the whole sequence, or those after the first event.
  int32_t first(const CaseView& view, int sequence) const;
};

}  // namespace kv
