#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// Statistics of one full-cache pass, per query block, laid out [heads, blocks, tokens].
//
// future_scores looks up, for every resident entry, a table value by its position:
//   scores[row, slot] = table[row, from_block[sequence], positions[slot]]
// (0 where the sequence's table has no such block: nothing is known to come). Positions are < tokens.
struct FutureScoresArgs {
  PagedView cache;
  const float* table = nullptr;         // [rows, blocks, tokens]
  const int32_t* from_block = nullptr;  // [sequences]
  int64_t blocks = 0;
  int64_t tokens = 0;
  const uint8_t* rows_due = nullptr;
  Slots<float> scores;
};

// Turns per-block statistics into "over all later blocks" (001 Eq. 5), after merging `merge` neighbouring
// blocks:
//   output[h, b, j] = max over b' in [b, min(b + horizon, B)) of combine of input[h, b'·merge … b'·merge + merge − 1,
//   j] · scale
// combine = sum or max. B = ceil(blocks / merge); horizon <= 0 means to the end. `output` may not alias `input`.
struct FutureTableArgs {
  enum class Combine : uint8_t { kSum, kMax };
  Combine combine = Combine::kSum;
  const float* input = nullptr;  // [heads, blocks, tokens]
  float* output = nullptr;       // [heads, ceil(blocks / merge), tokens]
  int64_t heads = 0;
  int64_t blocks = 0;
  int64_t tokens = 0;
  int merge = 1;
  int horizon = 0;
  float scale = 1;
};

namespace cpu {
void future_scores(const FutureScoresArgs& args);
void future_table(const FutureTableArgs& args);
}  // namespace cpu
namespace cuda {
void future_scores(const FutureScoresArgs& args);
void future_table(const FutureTableArgs& args);
}  // namespace cuda

}  // namespace kv
