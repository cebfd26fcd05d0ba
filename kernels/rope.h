#pragma once

#include "kernels/element.h"

namespace kv {

// kBackward takes the gradient of rope's output to that of its input: the transpose, by −angle and times f all the
// same.
enum class RopeDirection : uint8_t { kForward, kBackward };

// Rotary position embedding, half-split layout (Hugging Face): with a = x[d], b = x[d + D/2],
// angle = float(position) · inv_freq[d]:  a' = f·(a cos − b sin), b' = f·(b cos + a sin), f = attention_factor.
// The angle is an f32 product as in transformers, so positions and frequencies round alike. `output` may alias `input`.
struct RopeArgs {
  ConstRef input;            // [tokens, heads, head_dim]
  const int32_t* positions;  // [tokens]
  const float* inv_freq;     // [head_dim / 2]
  Ref output;                // [tokens, heads, head_dim]
  int64_t tokens = 0;
  int heads = 0;
  int head_dim = 0;
  float attention_factor = 1.0f;
  RopeDirection direction = RopeDirection::kForward;
};

namespace cpu {
void rope(const RopeArgs& args);
}
namespace cuda {
void rope(const RopeArgs& args);
}

}  // namespace kv
