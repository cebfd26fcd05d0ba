#pragma once

#include "kernels/element.h"

namespace kv {

// What a student pays over the vocabulary, against the next token and against its teacher, and which way its hidden
// states would have to move (TRIM-KV and 003 learn from the mean of both). With q = softmax(weight · student[t]) and
// p = softmax(weight · teacher[t]):
//   next_token[t] = −log q(targets[t]), 0 where that is −1      divergence[t] = Σ_v p_v log(p_v / q_v), all in nats
//   gradient = ∂/∂student Σ_t scale · weights[t] · (a · next_token[t] + b · divergence[t])
//            = scale · weights[t] · Σ_v ((a + b) q_v − b p_v − a [v = targets[t]]) · weight[v, :]
// A token of weight 0 is not looked at: its losses and gradient are 0. Means over tokens are the caller's, by `scale`.
// Sums over the vocabulary are taken in double, as token_loss takes them, on a GPU of pieces of up to 512 words, whose
// own sums are f32, in at most 13 steps one after the other; what weight's rows are multiplied by is stored in the
// activations' type. Logits are made once, and held of some tokens at a time: of at most as many as make 2^22 on the
// CPU, 2^26 on a GPU, or of 96 and 16 tokens if that is more. They take 4 bytes each, student's and teacher's, on a GPU
// 2 more.
struct VocabularyLossArgs {
  ConstRef student;                  // [tokens, width], after the final norm
  ConstRef teacher = {};             // likewise; null: no divergence, and b = 0
  ConstRef weight;                   // [vocab, width]
  const int32_t* targets = nullptr;  // [tokens], −1 = none
  const float* weights = nullptr;    // [tokens]; null: 1 each
  float next_token_weight = 0.5F;    // a
  float divergence_weight = 0.5F;    // b
  float scale = 1;
  float* next_token = nullptr;  // [tokens]
  float* divergence = nullptr;  // [tokens]; null without teacher
  Ref gradient = {};            // [tokens, width], may alias either state; null: losses alone
  int64_t tokens = 0;
  int64_t width = 0;
  int64_t vocab = 0;
};

namespace cpu {
void vocabulary_loss(const VocabularyLossArgs& args);
}
namespace cuda {
void vocabulary_loss(const VocabularyLossArgs& args);
}

}  // namespace kv
