#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/rope.h"
#include "kernels/tensor.h"
#include "sim/model/model_config.h"
#include "sim/model/projections.h"
#include "sim/model/weights.h"

namespace kv {

// The forward pass of a decoder (sim/model/model_config.h) over a packed block of tokens, as functions over explicit
// buffers: attention itself is the caller's, between project_layer() and
// absorb_layer(), because the cache that it reads is. Everything is in
// the backend's activation type and on the backend; nothing waits for it.

// A model on a backend. Shared by all passes.
struct ForwardModel {
  Backend& backend;
  const ModelConfig& config;
  const ModelTensors& weights;
  Tensor inv_freq;  // [head_dim / 2] f32, of the rotary embedding
  float attention_factor = 1;
};

ForwardModel forward_model(Backend& backend, const ModelConfig& config, const ModelTensors& weights);

// Where a layer's numbers of a block go, [tokens, width] each. Those that nobody needs side by side may be one: each
// function below reads and writes in the order of this list.
struct LayerActivations {
  Ref input;                 // the residual stream before the layer
  Ref normed;                // after the input norm: what attention reads
  Ref raw_q, raw_k;          // projections, before the heads' own norm; where a family has none, as q and k
  Ref q, k, v;               // before the rotation
  Ref q_rotated, k_rotated;  // after it
  Ref middle;                // the residual stream between attention and MLP
  Ref normed_middle;         // after the post-attention norm: what the MLP reads
  Ref gate, up;              // of the MLP
  Ref mixed;                 // silu(gate) · up
  Ref output;                // the residual stream after the layer
};

// Where a block's numbers live, [tokens, width] each, until the next layer writes over them.
struct ForwardBuffers {
  Tensor hidden;                // the residual stream
  Tensor normed;                // what attention, the MLP or the head reads
  Tensor q, k, v;               // projections; q and k after the heads' own norm, before the rotation
  Tensor q_rotated, k_rotated;  // after it
  Tensor gate, up;              // of the MLP

  void reserve(Backend& backend, const ModelConfig& config, int64_t tokens);
  // What reserve() makes room for.
  static size_t bytes(const Backend& backend, const ModelConfig& config, int64_t tokens);
  // Any layer's: one residual stream, one normed, no room for what an op may write over.
  LayerActivations layer();
};

// The tokens of a block: how many there are, and where each stands in its text.
struct ForwardBlock {
  int64_t tokens = 0;
  const int32_t* positions = nullptr;  // [tokens], on the backend
};

// By which the block's queries and keys turn.
RopeAngles angles_of(const ForwardModel& model, const ForwardBlock& block);

// hidden [tokens, hidden]: rows of the embedding; ids [tokens] on the backend.
void embed_tokens(const ForwardModel& model, const ForwardBlock& block, const int32_t* ids, Ref hidden);

// A layer up to its attention: norm, q, k, v, the heads' norms, rotation. Returns projections_of(activations).
Projections project_layer(const ForwardModel& model, const ForwardBlock& block, int layer,
                          const LayerActivations& activations);

// What attention reads, of activations that project_layer has written.
Projections projections_of(const LayerActivations& activations);

// A layer from its attention on: output projection and residual, then the MLP. head_outputs [tokens, q_heads,
// head_dim].
void absorb_layer(const ForwardModel& model, const ForwardBlock& block, int layer, ConstRef head_outputs,
                  const LayerActivations& activations);

// absorb_layer but for its end, the product that leads out of the MLP: what a gradient has to know.
void absorb_up_to_mixed(const ForwardModel& model, const ForwardBlock& block, int layer, ConstRef head_outputs,
                        const LayerActivations& activations);

// normed [rows, hidden]: the final norm of rows of the residual stream, from which the head (token_loss or head_logits)
// goes on.
void norm_head(const ForwardModel& model, ConstRef hidden, int64_t rows, Ref normed);

// logits [rows, vocab], f32.
void head_logits(const ForwardModel& model, ConstRef normed, int64_t rows, float* logits);

}  // namespace kv
