#include "harness/metrics/entropy_rank.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/check.h"

namespace kv {

std::vector<uint8_t> high_entropy(std::span<const float> entropy, int32_t first, int32_t last, double fraction) {
  KV_CHECK(0 <= first && first <= last && last <= static_cast<int32_t>(entropy.size()));
  std::vector<int32_t> order(static_cast<size_t>(last - first));
  std::iota(order.begin(), order.end(), first);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = entropy[static_cast<size_t>(a)];
    const float y = entropy[static_cast<size_t>(b)];
    return x != y ? x > y : a > b;
  });
  order.resize(static_cast<size_t>(std::floor(fraction * static_cast<double>(order.size()) + 0.5)));
  std::vector<uint8_t> high(entropy.size(), 0);
  for (const int32_t t : order) high[static_cast<size_t>(t)] = 1;
  return high;
}

EntropySplit EntropySplit::from(Params& params) {
  EntropySplit split;
  split.fraction = params.get("fraction", 0.2, "share of tokens that counts as high-entropy");
  if (!(split.fraction > 0 && split.fraction < 1)) params.fail("fraction", "expected a share between 0 and 1");
  split.tail = params.get("range", "sequence", {"sequence", "tail"},
                          "tokens that are ranked and counted: all, or those after the first event") == "tail";
  return split;
}

int32_t EntropySplit::first(const CaseView& view, int sequence) const {
  return tail ? view.first_event[static_cast<size_t>(sequence)] : 0;
}

}  // namespace kv
