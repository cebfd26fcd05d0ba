#pragma once

#include <cstdint>
#include <limits>

#include "kernels/element.h"
#include "kernels/paged.h"

namespace kv {

// A number a key that is added to logits, so that what learns it learns from them.
struct KeyBias {
  enum class Form : uint8_t {
    kNone,           // 0
    kOutsideWindow,  // b_j where i − j >= window, else 0    b = log(gate + ε)    (WG-KV, 004, Sec. 3.2)
    kDistance,  // (i − j) · b_j                        b = log β            (retention β^(i − j), 003, Sec. 3)
  };
  Form form = Form::kNone;
  int window = 0;                 // of kOutsideWindow: at least 1
  const float* values = nullptr;  // b [tokens, kv_heads]; null for kNone
  // Of kOutsideWindow: only so many first keys of a sequence may be seen outside the window. All others have a b of −∞,
  // which `values` says, too, and ops may pass over what nobody sees.
  int far_keys = std::numeric_limits<int>::max();
};

// What attention in training reads: whole sequences, packed one behind the other in any order. A segment is a sequence
// from its position 0 on (first_position is not read), and its queries see keys of that segment only, up to their own.
// Query head h reads KV head h / group, group = q_heads / kv_heads:
//   logit(i, j) = scale · q_i · k_j + bias(i, j),  j <= i.
// b may be any finite number that leaves logits finite, or −∞, or so low that a logit is no number of f32 any more: the
// key then has a probability of 0 where its bias counts, and so a gradient of 0. A query's own key never has a bias:
// there is always one that it sees.
struct PackedAttention {
  ConstRef queries;  // [tokens, q_heads, head_dim], post-RoPE
  ConstRef keys;     // [tokens, kv_heads, head_dim], post-RoPE
  ConstRef values;   // [tokens, kv_heads, head_dim]
  KeyBias bias;
  const Segment* segments = nullptr;  // [segment_count]; no token is in two
  int64_t segment_count = 0;
  int64_t max_count = 0;  // largest count, known on the host
  int64_t tokens = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // on a GPU even, and at most 128
  float scale = 0;   // 1 / sqrt(head_dim)

  constexpr int group() const { return q_heads / kv_heads; }
};

// output_i = Σ_j p_ij v_j, p = softmax of the logits over j. In both ops, places of tokens that are in no segment stay
// untouched, and results do not depend on the number of threads.
struct BiasedAttentionArgs {
  PackedAttention attention;
  Ref output;                 // [tokens, q_heads, head_dim]
  float* log_sums = nullptr;  // [tokens, q_heads]: log Σ_j e^logit(i, j), which turns a logit into log p
};

// From the gradient of the output those of what attention read. With dp_ij = output_gradient_i · v_j and
// D_i = output_gradient_i · output_i, logits have the gradient ds_ij = p_ij (dp_ij − D_i), whose sum over j is 0:
//   query_gradient_i = scale · Σ_j ds_ij k_j           value_gradient_j = Σ_i p_ij output_gradient_i
//   key_gradient_j = scale · Σ_i ds_ij q_i             bias_gradient_j = Σ_i ds_ij ∂bias(i, j)/∂b_j
// Sums over i are over the group's heads, too; on Hopper heads may be summed apart first, in 8 · head_dim · q_heads
// bytes a token, where texts are few and short: last bits there depend on the card and on what else is packed.
// Gradients replace what was there, they are not added to it.
struct BiasedAttentionBackwardArgs {
  PackedAttention attention;
  ConstRef output;                  // as the forward op has left it,
  const float* log_sums = nullptr;  // and this, too
  ConstRef output_gradient;         // [tokens, q_heads, head_dim]
  // Of all three none may be asked for, null, where a bias learns and nothing below it.
  Ref query_gradient;              // [tokens, q_heads, head_dim]
  Ref key_gradient;                // [tokens, kv_heads, head_dim]
  Ref value_gradient;              // [tokens, kv_heads, head_dim]
  float* bias_gradient = nullptr;  // [tokens, kv_heads]; null for kNone
  // Without it, sums of query_gradient may have another order each time. On Hopper, at head_dim 64 and 128, that takes
  // five products in place of seven, and 4 bytes more for each of their elements.
  bool deterministic = true;

  constexpr bool asks_of_bias_alone() const { return query_gradient.data == nullptr; }
};

namespace cpu {
void biased_attention(const BiasedAttentionArgs& args);
void biased_attention_backward(const BiasedAttentionBackwardArgs& args);
}  // namespace cpu
namespace cuda {
void biased_attention(const BiasedAttentionArgs& args);
void biased_attention_backward(const BiasedAttentionBackwardArgs& args);
}  // namespace cuda

}  // namespace kv
