#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace kv {

// How much a new token's entry is worth keeping, by its key alone (WG-KV, 004 Sec. 3.2; GatingPredictor of the released
// code): for each token and KV head
//   g = σ(w2 · GELU(W1 x + b1) + b2),  x = [k / rms(k), k' / rms(k')],  rms(v)² = mean(v²) + 1e-6,  GELU by erf;
// k is the key before RoPE, after any k-norm, k' the one after RoPE. The norms' own weights scale the columns of W1,
// which is taken to hold them. x is rounded to the activations' type, sums are f32.
struct WriteGateArgs {
  static constexpr float kEpsilon = 1e-6F;
  static constexpr int kMostHeadDim = 128;
  ConstRef pre_rope_keys;  // [tokens, kv_heads, head_dim]
  ConstRef keys;           // [tokens, kv_heads, head_dim]
  int64_t tokens = 0;
  int kv_heads = 0;
  int head_dim = 0;                       // <= 128, a multiple of 4
  int hidden = 0;                         // rows of W1
  ConstRef weights;                       // W1 [kv_heads, hidden, 2 head_dim]
  const float* bias = nullptr;            // [kv_heads, hidden]
  const float* output_weights = nullptr;  // [kv_heads, hidden]
  const float* output_bias = nullptr;     // [kv_heads]
  float* gates = nullptr;                 // [tokens, kv_heads], in [0, 1]
};

namespace cpu {
void write_gate(const WriteGateArgs& args);
}
namespace cuda {
void write_gate(const WriteGateArgs& args);
}

}  // namespace kv
