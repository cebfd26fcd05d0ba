#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

// A row of kernels/eviction_surrogate.h, in double. Scores are y, of the candidates and of others.
struct DrawnRow {
  std::vector<double> scores, old_scores, reference_scores;
  std::vector<int64_t> drawn;       // in the order of the draws
  std::vector<uint8_t> candidates;  // of the draws in their order; empty: each is made among all slots, for itself
  double advantage = 0;
  double clip = 0.2;
  double kl_weight = 0;
};

struct EvictionSurrogate {
  double loss = 0;
  double kl = 0;
  double clipped = 0;
  std::vector<double> gradient;
};

// Draw by draw, each with a softmax of its own over those among whom it was made.
EvictionSurrogate eviction_surrogate(const DrawnRow& row);

}  // namespace kv::ref
