#pragma once

#include <cstdint>

#include "kernels/token_heads.h"

namespace kv {

// Whose entries an occupancy counts.
enum class OccupancyOf : uint8_t {
  kEachHead,  // [layers, tokens, heads]: each its own
  kAllHeads,  // [tokens]: of all layers and heads together, as under a global budget
};

// How many entries a KV head holds by token t, where each counts by what its retention has left of it (TRIM-KV; 003's
// global retention adds them up over all heads):
//   S(t) = Σ_{i <= t} β_i^{t − i},  i and t tokens of one sequence,  log_beta = log β, finite and at most 0
// occupancy += S, so that layers can come one after the other. Powers are e^((t − i) · log β), which tells apart what β
// near 1 would not. No matrix of tokens × tokens is ever held: beside a few tiles a thread, scratch memory of what
// log_beta takes on the CPU where all heads are counted together, on a GPU of some three numbers a head and token, as
// if all sequences were as long as the longest. A GPU takes T log T powers of T tokens: of tokens far from each other
// it interpolates, exact to 2e-13 a token but for f32's roundings of what is interpolated, which for the gradient are
// relative to the largest slope that a stretch of far tokens might give, not to what they give.
struct OccupancyArgs {
  TokenHeads shape;
  const float* log_beta = nullptr;
  OccupancyOf of = OccupancyOf::kEachHead;
  float* occupancy = nullptr;
};

// gradient_i += Σ_{t >= i} slope(t) · (t − i) β_i^{t − i}: ∂loss/∂log β, of slopes = ∂loss/∂S.
struct OccupancyBackwardArgs {
  TokenHeads shape;
  const float* log_beta = nullptr;
  OccupancyOf of = OccupancyOf::kEachHead;
  const float* slopes = nullptr;  // as the occupancy
  float* gradient = nullptr;      // as log_beta
};

namespace cpu {
void occupancy(const OccupancyArgs& args);
void occupancy_backward(const OccupancyBackwardArgs& args);
}  // namespace cpu
namespace cuda {
void occupancy(const OccupancyArgs& args);
void occupancy_backward(const OccupancyBackwardArgs& args);
}  // namespace cuda

}  // namespace kv
