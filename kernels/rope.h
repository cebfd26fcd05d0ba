#pragma once

#include "kernels/check.h"
#include "kernels/element.h"

namespace kv {

// Rotary position embedding, half-split layout (Hugging Face): with a = x[d], b = x[d + D/2],
// angle = float(position) · inv_freq[d]:  a' = f·(a cos − b sin), b' = f·(b cos + a sin), f = attention_factor.
// The angle is an f32 product as in transformers, so positions and frequencies round alike. `output` may alias `input`.
// Where a family has a norm of every head, x is what rms_norm (kernels/rms_norm.h) makes of the input, of the
// activations' type, and goes to `normed`, which may alias `input`, but not `output`.
struct RopeVectors {
  ConstRef input;      // [tokens, heads, head_dim]
  ConstRef norm = {};  // its weight, [head_dim], or null
  Ref normed = {};     // [tokens, heads, head_dim]; unused without a norm
  Ref output;          // [tokens, heads, head_dim]
  int heads = 0;
};

// The angles by which queries and keys of a block turn.
struct RopeAngles {
  const int32_t* positions = nullptr;  // [tokens]
  const float* inv_freq = nullptr;     // [head_dim / 2]
  int64_t tokens = 0;
  int head_dim = 0;  // even
  float attention_factor = 1.0f;
};

// Queries and keys turn by the same angles.
struct RopeArgs {
  static constexpr int kMost = 2;
  RopeVectors vectors[kMost];  // those without heads are none
  RopeAngles angles;
  float norm_epsilon = 1e-6f;
};

// Backward: the gradient of the output turns by −angle and times f all the same (the transpose), the addend comes to
// it, and the norm, whose weight is frozen, takes it to the gradient of the input, as rms_norm_backward does. What lies
// between may be rounded to the activations' type or not. `input_gradient` may alias any of the other three of its
// shape.
struct RopeGradients {
  ConstRef output_gradient;  // [tokens, heads, head_dim]
  ConstRef addend = {};      // the same: of `normed`, or without a norm of the input, by who else reads it; or null
  ConstRef norm = {};        // its weight, [head_dim], or null
  ConstRef input = {};       // [tokens, heads, head_dim], the norm's; unused without one
  Ref input_gradient;        // [tokens, heads, head_dim]
  int heads = 0;
};

struct RopeBackwardArgs {
  RopeGradients vectors[RopeArgs::kMost];  // those without heads are none
  RopeAngles angles;
  float norm_epsilon = 1e-6f;
};

inline void check_halves(const RopeAngles& angles) { KV_CHECK(angles.head_dim > 0 && angles.head_dim % 2 == 0); }
inline void check_rope(const RopeArgs& args) {
  check_halves(args.angles);
  for (const RopeVectors& vectors : args.vectors) KV_CHECK(!vectors.norm || vectors.normed.data != vectors.output.data);
}
inline void check_rope(const RopeBackwardArgs& args) {
  check_halves(args.angles);
  for (const RopeGradients& vectors : args.vectors) KV_CHECK(!vectors.norm || vectors.input);
}

namespace cpu {
void rope(const RopeArgs& args);
void rope_backward(const RopeBackwardArgs& args);
}  // namespace cpu
namespace cuda {
void rope(const RopeArgs& args);
void rope_backward(const RopeBackwardArgs& args);
}  // namespace cuda

}  // namespace kv
