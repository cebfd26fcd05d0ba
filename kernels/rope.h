#pragma once

#include "kernels/check.h"
#include "kernels/element.h"

namespace kv {

// kBackward takes the gradient of rope's output to that of its input: the transpose, by −angle and times f all the
// same.
enum class RopeDirection : uint8_t { kForward, kBackward };

// Rotary position embedding, half-split layout (Hugging Face): with a = x[d], b = x[d + D/2],
// angle = float(position) · inv_freq[d]:  a' = f·(a cos − b sin), b' = f·(b cos + a sin), f = attention_factor.
// The angle is an f32 product as in transformers, so positions and frequencies round alike. `output` may alias `input`.
// Where a family has a norm of every head, x is what rms_norm (kernels/rms_norm.h) makes of the input, of the
// activations' type, and goes to `normed`, which may alias `input`, but not `output`. Backward there is none:
// rms_norm_backward comes after.
struct RopeVectors {
  ConstRef input;      // [tokens, heads, head_dim]
  ConstRef norm = {};  // its weight, [head_dim], or null
  Ref normed = {};     // [tokens, heads, head_dim]; unused without a norm
  Ref output;          // [tokens, heads, head_dim]
  int heads = 0;
};

// Queries and keys of a block turn by the same angles.
struct RopeArgs {
  static constexpr int kMost = 2;
  RopeVectors vectors[kMost];  // those without heads are none
  const int32_t* positions;    // [tokens]
  const float* inv_freq;       // [head_dim / 2]
  int64_t tokens = 0;
  int head_dim = 0;
  float attention_factor = 1.0f;
  float norm_epsilon = 1e-6f;
  RopeDirection direction = RopeDirection::kForward;
};

inline void check_vectors(const RopeArgs& args) {
  for (const RopeVectors& vectors : args.vectors) {
    KV_CHECK(!vectors.norm || args.direction == RopeDirection::kForward);
    KV_CHECK(!vectors.norm || vectors.normed.data != vectors.output.data);
  }
}

namespace cpu {
void rope(const RopeArgs& args);
}
namespace cuda {
void rope(const RopeArgs& args);
}

}  // namespace kv
