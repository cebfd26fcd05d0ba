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
  static constexpr float kLeast = 1e-3F;  // the released code's clamp, in training alone; the paper adds it
  static constexpr int kMostHeadDim = 128;
  ConstRef pre_rope_keys;  // [layers, tokens, kv_heads, head_dim]
  ConstRef keys;           // [layers, tokens, kv_heads, head_dim]
  int layers = 1;          // at once, each with weights of its own
  int64_t tokens = 0;
  int kv_heads = 0;
  int head_dim = 0;                       // <= 128, a multiple of 4
  int hidden = 0;                         // rows of W1
  ConstRef weights;                       // W1 [layers, kv_heads, hidden, 2 head_dim]
  const float* bias = nullptr;            // [layers, kv_heads, hidden]
  const float* output_weights = nullptr;  // [layers, kv_heads, hidden]
  const float* output_bias = nullptr;     // [layers, kv_heads]
  float* gates = nullptr;                 // [layers, tokens, kv_heads], in [0, 1]
  float* log_gates = nullptr;  // [layers, tokens, kv_heads], log max(g, kLeast), which attention adds; or null
};

// One of the layers, by itself. Value: as long as an activation.
template <class Value>
constexpr WriteGateArgs of_layer(const WriteGateArgs& args, int layer) {
  const int64_t gates = layer * args.tokens * args.kv_heads, heads = int64_t{layer} * args.kv_heads;
  WriteGateArgs of = args;
  of.layers = 1;
  of.pre_rope_keys.data = static_cast<const Value*>(args.pre_rope_keys.data) + gates * args.head_dim;
  of.keys.data = static_cast<const Value*>(args.keys.data) + gates * args.head_dim;
  of.weights.data = static_cast<const Value*>(args.weights.data) + heads * args.hidden * 2 * args.head_dim;
  of.bias += heads * args.hidden;
  of.output_weights += heads * args.hidden;
  of.output_bias += heads;
  of.gates += gates;
  if (of.log_gates) of.log_gates += gates;
  return of;
}

// Backward, from what the gates did to a loss, by their logarithms and by themselves: with y the logit, g = σ(y),
//   y_gradient = (1 − g) · log_gate_gradient [g >= kLeast] + g (1 − g) · gate_gradient
// and from there on to all that the forward op has read. Gradients of parameters, in f32, are added to, and so are
// those of the keys, which others read, too. Sums over tokens do not depend on the number of threads. On a card the
// gradient of the hidden layer is rounded to the activations' type before it is multiplied by W1 and x; sums are f32.
// With neither gradient given nothing is done.
struct WriteGateBackwardArgs {
  WriteGateArgs forward;                     // of one layer: what the op has read, and its gates; log_gates are not
  const float* log_gate_gradient = nullptr;  // [tokens, kv_heads] or null
  const float* gate_gradient = nullptr;      // [tokens, kv_heads] or null
  Ref pre_rope_key_gradient = {};            // [tokens, kv_heads, head_dim]; null, as the next: nobody asks
  Ref key_gradient = {};                     // [tokens, kv_heads, head_dim]
  float* weight_gradient = nullptr;          // [kv_heads, hidden, 2 head_dim]
  float* bias_gradient = nullptr;            // [kv_heads, hidden]
  float* output_weight_gradient = nullptr;   // [kv_heads, hidden]
  float* output_bias_gradient = nullptr;     // [kv_heads]
};

namespace cpu {
void write_gate(const WriteGateArgs& args);
void write_gate_backward(const WriteGateBackwardArgs& args);
}  // namespace cpu
namespace cuda {
void write_gate(const WriteGateArgs& args);
void write_gate_backward(const WriteGateBackwardArgs& args);
}  // namespace cuda

}  // namespace kv
