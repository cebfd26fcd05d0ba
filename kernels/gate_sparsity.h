#pragma once

#include <cstdint>

#include "kernels/token_heads.h"

namespace kv {

// The share of tokens that gates let into a cache, as a loss that also wants gates to be 0 or 1 (WG-KV, 004 Sec. 3.3).
// Token s of a sequence of T is seen by T − s queries, of which the window serves W = window in any case:
//   loss = mean over layers, tokens and heads of o_s + (1 − o_s) (1 − (1 − g)²),  o_s = min(1, W / (T − s))
//   gradient += weight · ∂loss/∂g
// Here 1 − (1 − g)² is the paper's g + g (1 − g). The paper has no o_s, which is what window 0 means; the released code
// does, so that the last W tokens pull at nothing. The loss is summed in double; without any tokens it is 0. Beside it,
// how many gates would let their token in: those above a threshold.
struct GateSparsityArgs {
  TokenHeads shape;              // whose segments hold all of its tokens
  const float* gates = nullptr;  // [layers, tokens, heads], in [0, 1]
  int window = 0;
  float weight = 1;
  float threshold = 0;
  float* loss = nullptr;        // [1]
  int32_t* admitted = nullptr;  // [1]
  float* gradient = nullptr;    // as gates
};

// o_s
constexpr double windowed_share(const GateSparsityArgs& args, const Segment& segment, int64_t s) {
  const int64_t queries = segment.count - s;
  return queries <= args.window ? 1.0 : static_cast<double>(args.window) / static_cast<double>(queries);
}

namespace cpu {
void gate_sparsity(const GateSparsityArgs& args);
}
namespace cuda {
void gate_sparsity(const GateSparsityArgs& args);
}

}  // namespace kv
