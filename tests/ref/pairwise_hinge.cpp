#include "tests/ref/pairwise_hinge.h"

#include <cstddef>

namespace kv::ref {

PairwiseHinge pairwise_hinge(const std::vector<float>& targets, const std::vector<float>& scores, float margin) {
  PairwiseHinge result{.gradient = std::vector<double>(scores.size(), 0.0)};
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t j = 0; j < scores.size(); ++j) {
      if (!(targets[i] > targets[j])) continue;
      ++result.pairs;
      const double cost = double{margin} - (double{scores[i]} - scores[j]);
      if (!(cost > 0)) continue;
      result.loss += cost;
      result.gradient[i] -= 1;
      result.gradient[j] += 1;
    }
  }
  if (result.pairs == 0) return result;
  result.loss /= static_cast<double>(result.pairs);
  for (double& g : result.gradient) g /= static_cast<double>(result.pairs);
  return result;
}

}  // namespace kv::ref
