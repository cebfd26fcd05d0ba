#pragma once

#include "kernels/element.h"

namespace kv {

// Loss of the next token without holding all logits: logits[r, :] = hidden[r, :] · weightᵀ, streamed in blocks of rows.
//   nll[r]     = logsumexp(logits[r]) − logits[r, targets[r]], nats; 0 where targets[r] is −1 (no next token)
//   entropy[r] = −Σ_v p log p, nats, full vocabulary
//   argmax[r]  = most likely token; ties to the lower id
// Sums over the vocabulary are taken in double: 8192 f32 terms would lose the fifth digit of the mean.
struct TokenLossArgs {
  ConstRef hidden;          // [rows, width], after the final norm
  ConstRef weight;          // [vocab, width]
  const int32_t* targets;   // [rows], −1 = none
  float* nll;               // [rows]
  float* entropy;           // [rows]
  int32_t* argmax;          // [rows]
  float* logits = nullptr;  // [rows, vocab] or null
  int64_t rows = 0;
  int64_t width = 0;
  int64_t vocab = 0;
};

namespace cpu {
void token_loss(const TokenLossArgs& args);
}
namespace cuda {
void token_loss(const TokenLossArgs& args);
}

}  // namespace kv
