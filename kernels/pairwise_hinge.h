#pragma once

#include <cstdint>

#include "kernels/slots.h"

namespace kv {

// How far the scores of a row are from the order of its targets, and which way they would have to move (001, supervised
// stage; the released code's loss of one row): with slots i, j in [0, n), n = lengths[row] − drop_newest,
//   P = {(i, j) : t_i > t_j}     loss = 1/|P| Σ_{(i,j) in P} max(0, margin − (s_i − s_j))     gradient_i = ∂loss/∂s_i
// A pair at the margin exactly costs nothing and pulls at nothing. Pairs of equal targets are none; a row without a
// pair has loss 0 and gradients 0, which is what pairs[row] = 0 is for: the code's mean over rows leaves such rows out.
// A row that holds a number that is not finite has loss and gradients NaN. Sums of pairs in double; all exact but for
// their order.
struct PairwiseHingeArgs {
  Slots<const float> targets;
  Slots<const float> scores;
  const int32_t* lengths = nullptr;   // [rows]
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip, nothing of the row is written; null = all
  int64_t rows = 0;
  int drop_newest = 0;
  float margin = 0.01F;
  Slots<float> gradient;     // of slots [0, n); may not alias scores
  float* loss = nullptr;     // [rows]
  int32_t* pairs = nullptr;  // [rows], |P|; n <= 65536
};

namespace cpu {
void pairwise_hinge(const PairwiseHingeArgs& args);
}
namespace cuda {
void pairwise_hinge(const PairwiseHingeArgs& args);
}

}  // namespace kv
