#include "sim/model/forward.h"

#include <vector>

#include "kernels/embed.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/silu_mul.h"
#include "sim/model/rope_scaling.h"

namespace kv {

namespace {

struct Product {
  ConstRef input;
  const Tensor& weight;  // [out, in]
  const Tensor& bias;    // [out] or empty
  ConstRef addend{};     // the residual stream, or nothing
};

void linear(const ForwardModel& model, int64_t rows, const Product& product, int64_t in, int64_t out, Tensor& output) {
  model.backend.linear({.input = product.input,
                        .weight = product.weight.ref(),
                        .bias = product.bias.ref(),
                        .addend = product.addend,
                        .output = output.ref(),
                        .rows = rows,
                        .in = in,
                        .out = out});
}

void norm(const ForwardModel& model, ConstRef input, const Tensor& weight, Tensor& output, int64_t rows,
          int64_t width) {
  model.backend.rms_norm({.input = input,
                          .weight = weight.ref(),
                          .output = output.ref(),
                          .rows = rows,
                          .width = width,
                          .epsilon = static_cast<float>(model.config.rms_norm_eps)});
}

// Every head by itself, in place, where the family has such a norm.
void norm_heads(const ForwardModel& model, const ForwardBlock& block, const Tensor& weight, int heads,
                Tensor& projected) {
  if (weight) norm(model, projected.ref(), weight, projected, block.tokens * heads, model.config.head_dim);
}

void rotate(const ForwardModel& model, const ForwardBlock& block, const Tensor& input, int heads, Tensor& output) {
  model.backend.rope({.input = input.ref(),
                      .positions = block.positions,
                      .inv_freq = model.inv_freq.ref().as<float>(),
                      .output = output.ref(),
                      .tokens = block.tokens,
                      .heads = heads,
                      .head_dim = model.config.head_dim,
                      .attention_factor = model.attention_factor});
}

// Calls with every buffer and its width.
template <class Buffers, class Visit>
void for_each_buffer(Buffers& buffers, const ModelConfig& config, const Visit& visit) {
  visit(buffers.hidden, config.hidden_size);
  visit(buffers.normed, config.hidden_size);
  visit(buffers.q, config.q_size());
  visit(buffers.k, config.kv_size());
  visit(buffers.v, config.kv_size());
  visit(buffers.q_rotated, config.q_size());
  visit(buffers.k_rotated, config.kv_size());
  visit(buffers.gate, config.intermediate_size);
  visit(buffers.up, config.intermediate_size);
}

const Tensor kNoBias;

}  // namespace

ForwardModel forward_model(Backend& backend, const ModelConfig& config, const ModelTensors& weights) {
  const Rope rope = make_rope(config.rope, config.head_dim);
  ForwardModel model{.backend = backend,
                     .config = config,
                     .weights = weights,
                     .inv_freq = Tensor(backend, DType::kF32, std::ssize(rope.inv_freq)),
                     .attention_factor = static_cast<float>(rope.attention_factor)};
  model.inv_freq.upload(rope.inv_freq.data(), model.inv_freq.bytes());
  return model;
}

void ForwardBuffers::reserve(Backend& backend, const ModelConfig& config, int64_t tokens) {
  for_each_buffer(*this, config, [&](Tensor& tensor, int64_t width) {
    tensor.reserve(backend, backend.activation_type(), tokens * width);
  });
}

size_t ForwardBuffers::bytes(const Backend& backend, const ModelConfig& config, int64_t tokens) {
  const ForwardBuffers none;
  int64_t elements = 0;
  for_each_buffer(none, config, [&](const Tensor&, int64_t width) { elements += tokens * width; });
  return static_cast<size_t>(elements) * bytes_of(backend.activation_type());
}

void embed_tokens(const ForwardModel& model, const ForwardBlock& block, const int32_t* ids, ForwardBuffers& buffers) {
  model.backend.embed({.table = model.weights.embedding.ref(),
                       .ids = ids,
                       .output = buffers.hidden.ref(),
                       .rows = block.tokens,
                       .width = model.config.hidden_size});
}

Projections project_layer(const ForwardModel& model, const ForwardBlock& block, int index, ForwardBuffers& buffers) {
  const LayerTensors& layer = model.weights.layers[static_cast<size_t>(index)];
  const ModelConfig& config = model.config;
  norm(model, buffers.hidden.ref(), layer.input_norm, buffers.normed, block.tokens, config.hidden_size);
  const ConstRef inputs = buffers.normed.ref();
  linear(model, block.tokens, {inputs, layer.q, layer.q_bias}, config.hidden_size, config.q_size(), buffers.q);
  linear(model, block.tokens, {inputs, layer.k, layer.k_bias}, config.hidden_size, config.kv_size(), buffers.k);
  linear(model, block.tokens, {inputs, layer.v, layer.v_bias}, config.hidden_size, config.kv_size(), buffers.v);
  norm_heads(model, block, layer.q_norm, config.heads, buffers.q);
  norm_heads(model, block, layer.k_norm, config.kv_heads, buffers.k);
  rotate(model, block, buffers.q, config.heads, buffers.q_rotated);
  rotate(model, block, buffers.k, config.kv_heads, buffers.k_rotated);
  return {.queries = buffers.q_rotated.ref(),
          .keys = buffers.k_rotated.ref(),
          .values = buffers.v.ref(),
          .pre_rope_queries = buffers.q.ref(),
          .pre_rope_keys = buffers.k.ref(),
          .inputs = inputs};
}

void absorb_layer(const ForwardModel& model, const ForwardBlock& block, int index, ConstRef head_outputs,
                  ForwardBuffers& buffers) {
  const LayerTensors& layer = model.weights.layers[static_cast<size_t>(index)];
  const int64_t hidden = model.config.hidden_size, intermediate = model.config.intermediate_size;
  const ConstRef residual = buffers.hidden.ref(), inputs = buffers.normed.ref();
  linear(model, block.tokens, {head_outputs, layer.o, layer.o_bias, residual}, model.config.q_size(), hidden,
         buffers.hidden);
  norm(model, residual, layer.post_norm, buffers.normed, block.tokens, hidden);
  linear(model, block.tokens, {inputs, layer.gate, kNoBias}, hidden, intermediate, buffers.gate);
  linear(model, block.tokens, {inputs, layer.up, kNoBias}, hidden, intermediate, buffers.up);
  model.backend.silu_mul({.gate = buffers.gate.ref(),
                          .up = buffers.up.ref(),
                          .output = buffers.gate.ref(),
                          .count = block.tokens * intermediate});
  linear(model, block.tokens, {buffers.gate.ref(), layer.down, kNoBias, residual}, intermediate, hidden,
         buffers.hidden);
}

void norm_head(const ForwardModel& model, ConstRef hidden, int64_t rows, ForwardBuffers& buffers) {
  norm(model, hidden, model.weights.final_norm, buffers.normed, rows, model.config.hidden_size);
}

void head_logits(const ForwardModel& model, const ForwardBuffers& buffers, int64_t rows, float* logits) {
  model.backend.linear({.input = buffers.normed.ref(),
                        .weight = model.weights.output_embedding().ref(),
                        .output = {logits, DType::kF32},
                        .rows = rows,
                        .in = model.config.hidden_size,
                        .out = model.config.vocab_size});
}

}  // namespace kv
