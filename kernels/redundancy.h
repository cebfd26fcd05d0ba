#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// R-KV's redundancy (cal_similarity of its released code), over all entries of a row:
//   k̂_j = k_j / (‖k_j‖ + 1e-8);  S_ij = k̂_i·k̂_j, S_ii = 0;  r(i) = the retained index among {j : S_ij > threshold}, 0
//   if none; S_{i, r(i)} = 0;  m_j = (1/n) Σ_i S_ij;  scores = softmax_j(m).
// kLast takes the newest such j, kLastPercent the k-th newest, k = max(1, int(n · retain_ratio)) with an f32
// product, or the oldest masked one where fewer exist. The column mean is one product with Σ_i k̂_i; only r(i) needs
// pairs, scanned from the newest tile and left at the first hit, so no n×n matrix is held.
struct RedundancyArgs {
  enum class Retain : uint8_t { kLast, kLastPercent };
  PagedView cache;
  float threshold = 0.5f;
  Retain retain = Retain::kLast;
  float retain_ratio = 0.2f;
  const uint8_t* rows_due = nullptr;
  Slots<float> scores;
};

namespace cpu {
void redundancy(const RedundancyArgs& args);
}
namespace cuda {
void redundancy(const RedundancyArgs& args);
}

}  // namespace kv
