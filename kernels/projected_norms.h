#pragma once

#include "kernels/element.h"

namespace kv {

// norms[t, h] = ‖v_t W_O^(h)‖₂ (002 Eq. 4), v of the KV head that query head h reads, through the Gram matrix
// G_h = W_O^(h) W_O^(h)ᵀ [head_dim, head_dim]: D² instead of D·width products a token.
struct ProjectedNormsArgs {
  ConstRef values;         // [tokens, kv_heads, head_dim]
  ConstRef output_weight;  // [width, q_heads · head_dim], as Hugging Face stores o_proj
  float* norms = nullptr;  // [tokens, q_heads]
  int64_t tokens = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int64_t width = 0;
};

namespace cpu {
void projected_norms(const ProjectedNormsArgs& args);
}
namespace cuda {
void projected_norms(const ProjectedNormsArgs& args);
}

}  // namespace kv
