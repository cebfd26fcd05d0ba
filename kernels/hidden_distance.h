#pragma once

#include "kernels/element.h"

namespace kv {

// How far a student's hidden states lie from its teacher's, after the final norm (WG-KV, 004 Sec. 3.3; the released
// code's mean of squares over all elements, which is loss averaged over tokens):
//   loss[t] = mean_i (student[t, i] − teacher[t, i])²      gradient = ∂/∂student Σ_t scale · weights[t] · loss[t]
// A token of weight 0 is not looked at: its loss and gradient are 0. Means over tokens are the caller's, by `scale`.
// Sums are f64.
struct HiddenDistanceArgs {
  ConstRef student;                // [tokens, width]
  ConstRef teacher;                // [tokens, width]
  const float* weights = nullptr;  // [tokens]; null: 1 each
  float scale = 1;
  float* loss = nullptr;  // [tokens]
  Ref gradient;           // [tokens, width]; may alias either state
  int64_t tokens = 0;
  int64_t width = 0;
};

namespace cpu {
void hidden_distance(const HiddenDistanceArgs& args);
}
namespace cuda {
void hidden_distance(const HiddenDistanceArgs& args);
}

}  // namespace kv
