#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
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
};

// The tokens of a block: how many there are, and where each stands in its text.
struct ForwardBlock {
  int64_t tokens = 0;
  const int32_t* positions = nullptr;  // [tokens], on the backend
};

// hidden: rows of the embedding; ids [tokens] on the backend.
void embed_tokens(const ForwardModel& model, const ForwardBlock& block, const int32_t* ids, ForwardBuffers& buffers);

// A layer up to its attention: norm, q, k, v, the heads' norms, rotation. The projections lie in the buffers.
Projections project_layer(const ForwardModel& model, const ForwardBlock& block, int layer, ForwardBuffers& buffers);

// A layer from its attention on: output projection, residual, norm, MLP, residual. head_outputs [tokens, q_heads,
// head_dim].
void absorb_layer(const ForwardModel& model, const ForwardBlock& block, int layer, ConstRef head_outputs,
                  ForwardBuffers& buffers);

// normed: the final norm of `rows` rows of the residual stream, from which the head (token_loss or head_logits) goes
// on.
void norm_head(const ForwardModel& model, ConstRef hidden, int64_t rows, ForwardBuffers& buffers);

// logits [rows, vocab], f32: of the first `rows` rows of normed.
void head_logits(const ForwardModel& model, const ForwardBuffers& buffers, int64_t rows, float* logits);

}  // namespace kv
