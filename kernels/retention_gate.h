#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace kv {

// How long a new token's entries deserve to stay, by what attention reads of the token (003's global retention;
// trimkv's RetentionGate): for each token x and KV head
//   a = SiLU(W1 x + b1),  e = SiLU(W2 a + b2),  log β = log σ(w · e + b), at most 0
// Without W2 e is a (TRIM-KV's gate; with it, 003's "rg10"). Either e is one for all heads of the layer, as in the
// code, or each head has its own rows of W2 and b2, as the paper writes. a is rounded to the activations' type, sums
// are f32; e and what follows are f32: β near 1 differ in log β alone.
struct RetentionGateArgs {
  ConstRef inputs;  // [tokens, width], after the layer's input norm
  int64_t tokens = 0;
  int64_t width = 0;
  int kv_heads = 0;
  int hidden = 0;
  ConstRef input_weights;                 // W1 [hidden, width]
  const float* input_bias = nullptr;      // b1 [hidden]
  int embeddings = 1;                     // 1 or kv_heads: how many e a token has
  ConstRef hidden_weights = {};           // W2 [embeddings, hidden, hidden]; null: none, and embeddings is 1
  const float* hidden_bias = nullptr;     // b2 [embeddings, hidden]; with W2
  const float* output_weights = nullptr;  // w [kv_heads, hidden]
  const float* output_bias = nullptr;     // b [kv_heads]
  float* log_retention = nullptr;         // [tokens, kv_heads]
};

// Backward:  gradient of the logit w · e + b = (1 − β) · (log_retention_gradient + other_gradient), and from there on
// to all that the forward op has read. Gradients of parameters, in f32, are added to, and so is that of the inputs,
// which others read, too. Sums over tokens do not depend on the number of threads.
struct RetentionGateBackwardArgs {
  RetentionGateArgs forward;                      // what the op has read, and log_retention as it has left it
  const float* log_retention_gradient = nullptr;  // [tokens, kv_heads]
  const float* other_gradient = nullptr;          // of log_retention by another loss; null: there is none
  Ref input_gradient = {};                        // [tokens, width]; null: nobody asks
  float* input_weight_gradient = nullptr;         // as what they are of
  float* input_bias_gradient = nullptr;
  float* hidden_weight_gradient = nullptr;  // both null without W2
  float* hidden_bias_gradient = nullptr;
  float* output_weight_gradient = nullptr;
  float* output_bias_gradient = nullptr;
};

namespace cpu {
void retention_gate(const RetentionGateArgs& args);
void retention_gate_backward(const RetentionGateBackwardArgs& args);
}  // namespace cpu
namespace cuda {
void retention_gate(const RetentionGateArgs& args);
void retention_gate_backward(const RetentionGateBackwardArgs& args);
}  // namespace cuda

}  // namespace kv
