#pragma once

#include "kernels/element.h"

namespace kv {

// One layer's projections of a block of tokens, [tokens, heads, head_dim]. Null where the source lacks them.
struct Projections {
  ConstRef queries;  // post-RoPE
  ConstRef keys;     // post-RoPE
  ConstRef values;
  ConstRef pre_rope_queries;  // after any q-norm
  ConstRef pre_rope_keys;     // after any k-norm
  ConstRef inputs;            // [tokens, width], the attention block's input (after the input norm)
};

}  // namespace kv
