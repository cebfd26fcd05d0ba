#include "sim/model/forward.h"

#include <vector>

#include "kernels/check.h"
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

void linear(const ForwardModel& model, int64_t rows, const Product& product, int64_t in, int64_t out, Ref output) {
  model.backend.linear({.input = product.input,
                        .weight = product.weight.ref(),
                        .bias = product.bias.ref(),
                        .addend = product.addend,
                        .output = output,
                        .rows = rows,
                        .in = in,
                        .out = out});
}

void norm(const ForwardModel& model, ConstRef input, const Tensor& weight, Ref output, int64_t rows, int64_t width) {
  model.backend.rms_norm({.input = input,
                          .weight = weight.ref(),
                          .output = output,
                          .rows = rows,
                          .width = width,
                          .epsilon = static_cast<float>(model.config.rms_norm_eps)});
}

// Every head by itself, where the family has such a norm; without it projections are what it would give.
void norm_heads(const ForwardModel& model, const ForwardBlock& block, const Tensor& weight, int heads, ConstRef raw,
                Ref normed) {
  if (weight) {
    norm(model, raw, weight, normed, block.tokens * heads, model.config.head_dim);
  } else {
    KV_CHECK(raw.data == normed.data);
  }
}

void rotate(const ForwardModel& model, const ForwardBlock& block, ConstRef input, int heads, Ref output) {
  model.backend.rope({.input = input,
                      .positions = block.positions,
                      .inv_freq = model.inv_freq.ref().as<float>(),
                      .output = output,
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

LayerActivations ForwardBuffers::layer() {
  return {.input = hidden.ref(),
          .normed = normed.ref(),
          .raw_q = q.ref(),
          .raw_k = k.ref(),
          .q = q.ref(),
          .k = k.ref(),
          .v = v.ref(),
          .q_rotated = q_rotated.ref(),
          .k_rotated = k_rotated.ref(),
          .middle = hidden.ref(),
          .normed_middle = normed.ref(),
          .gate = gate.ref(),
          .up = up.ref(),
          .mixed = gate.ref(),
          .output = hidden.ref()};
}

void embed_tokens(const ForwardModel& model, const ForwardBlock& block, const int32_t* ids, Ref hidden) {
  model.backend.embed({.table = model.weights.embedding.ref(),
                       .ids = ids,
                       .output = hidden,
                       .rows = block.tokens,
                       .width = model.config.hidden_size});
}

Projections project_layer(const ForwardModel& model, const ForwardBlock& block, int index, const LayerActivations& to) {
  const LayerTensors& layer = model.weights.layers[static_cast<size_t>(index)];
  const ModelConfig& config = model.config;
  norm(model, to.input, layer.input_norm, to.normed, block.tokens, config.hidden_size);
  linear(model, block.tokens, {to.normed, layer.q, layer.q_bias}, config.hidden_size, config.q_size(), to.raw_q);
  linear(model, block.tokens, {to.normed, layer.k, layer.k_bias}, config.hidden_size, config.kv_size(), to.raw_k);
  linear(model, block.tokens, {to.normed, layer.v, layer.v_bias}, config.hidden_size, config.kv_size(), to.v);
  norm_heads(model, block, layer.q_norm, config.heads, to.raw_q, to.q);
  norm_heads(model, block, layer.k_norm, config.kv_heads, to.raw_k, to.k);
  rotate(model, block, to.q, config.heads, to.q_rotated);
  rotate(model, block, to.k, config.kv_heads, to.k_rotated);
  return projections_of(to);
}

Projections projections_of(const LayerActivations& activations) {
  return {.queries = activations.q_rotated,
          .keys = activations.k_rotated,
          .values = activations.v,
          .pre_rope_queries = activations.q,
          .pre_rope_keys = activations.k,
          .inputs = activations.normed};
}

void absorb_up_to_mixed(const ForwardModel& model, const ForwardBlock& block, int index, ConstRef head_outputs,
                        const LayerActivations& to) {
  const LayerTensors& layer = model.weights.layers[static_cast<size_t>(index)];
  const int64_t hidden = model.config.hidden_size, intermediate = model.config.intermediate_size;
  linear(model, block.tokens, {head_outputs, layer.o, layer.o_bias, to.input}, model.config.q_size(), hidden,
         to.middle);
  norm(model, to.middle, layer.post_norm, to.normed_middle, block.tokens, hidden);
  linear(model, block.tokens, {to.normed_middle, layer.gate, kNoBias}, hidden, intermediate, to.gate);
  linear(model, block.tokens, {to.normed_middle, layer.up, kNoBias}, hidden, intermediate, to.up);
}

void absorb_layer(const ForwardModel& model, const ForwardBlock& block, int index, ConstRef head_outputs,
                  const LayerActivations& to) {
  absorb_up_to_mixed(model, block, index, head_outputs, to);
  const int64_t hidden = model.config.hidden_size, intermediate = model.config.intermediate_size;
  model.backend.silu_mul({.gate = to.gate, .up = to.up, .output = to.mixed, .count = block.tokens * intermediate});
  const Tensor& down = model.weights.layers[static_cast<size_t>(index)].down;
  linear(model, block.tokens, {to.mixed, down, kNoBias, to.middle}, intermediate, hidden, to.output);
}

void norm_head(const ForwardModel& model, ConstRef hidden, int64_t rows, Ref normed) {
  norm(model, hidden, model.weights.final_norm, normed, rows, model.config.hidden_size);
}

void head_logits(const ForwardModel& model, ConstRef normed, int64_t rows, float* logits) {
  model.backend.linear({.input = normed,
                        .weight = model.weights.output_embedding().ref(),
                        .output = {logits, DType::kF32},
                        .rows = rows,
                        .in = model.config.hidden_size,
                        .out = model.config.vocab_size});
}

}  // namespace kv
