#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

struct PairwiseHinge {
  double loss = 0;
  std::vector<double> gradient;
  int64_t pairs = 0;
};

// One row, pair by pair.
PairwiseHinge pairwise_hinge(const std::vector<float>& targets, const std::vector<float>& scores, float margin);

}  // namespace kv::ref
