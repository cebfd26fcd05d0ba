#include "sim/model/forward.h"

#include <vector>

#include "kernels/check.h"
#include "kernels/embed.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/silu_mul.h"
#include "sim/model/rope_scaling.h"

namespace kv {

namespace {

// bias: [out] or empty; addend: the residual stream, or nothing.
LinearProduct product(const Tensor& weight, const Tensor& bias, int64_t out, Ref output, ConstRef addend = {}) {
  return {.weight = weight.ref(), .bias = bias.ref(), .addend = addend, .output = output, .out = out};
}

LinearNorm norm_before(const ForwardModel& model, const Tensor& weight, Ref output) {
  return {.weight = weight.ref(), .output = output, .epsilon = static_cast<float>(model.config.rms_norm_eps)};
}

// Every head's norm, where the family has one; without it projections are what it would give.
RopeVectors turned(const Tensor& norm_weight, ConstRef raw, Ref normed, Ref output, int heads) {
  KV_CHECK(norm_weight || raw.data == normed.data);
  return {.input = raw, .norm = norm_weight.ref(), .normed = normed, .output = output, .heads = heads};
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

RopeAngles angles_of(const ForwardModel& model, const ForwardBlock& block) {
  return {.positions = block.positions,
          .inv_freq = model.inv_freq.ref().as<float>(),
          .tokens = block.tokens,
          .head_dim = model.config.head_dim,
          .attention_factor = model.attention_factor};
}

Projections project_layer(const ForwardModel& model, const ForwardBlock& block, int index, const LayerActivations& to) {
  const LayerTensors& layer = model.weights.layers[static_cast<size_t>(index)];
  const ModelConfig& config = model.config;
  model.backend.linear({.input = to.input,
                        .norm = norm_before(model, layer.input_norm, to.normed),
                        .products = {product(layer.q, layer.q_bias, config.q_size(), to.raw_q),
                                     product(layer.k, layer.k_bias, config.kv_size(), to.raw_k),
                                     product(layer.v, layer.v_bias, config.kv_size(), to.v)},
                        .rows = block.tokens,
                        .in = config.hidden_size});
  model.backend.rope({.vectors = {turned(layer.q_norm, to.raw_q, to.q, to.q_rotated, config.heads),
                                  turned(layer.k_norm, to.raw_k, to.k, to.k_rotated, config.kv_heads)},
                      .angles = angles_of(model, block),
                      .norm_epsilon = static_cast<float>(config.rms_norm_eps)});
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
  model.backend.linear({.input = head_outputs,
                        .products = {product(layer.o, layer.o_bias, hidden, to.middle, to.input)},
                        .rows = block.tokens,
                        .in = model.config.q_size()});
  model.backend.linear({.input = to.middle,
                        .norm = norm_before(model, layer.post_norm, to.normed_middle),
                        .products = {product(layer.gate, kNoBias, intermediate, to.gate),
                                     product(layer.up, kNoBias, intermediate, to.up)},
                        .rows = block.tokens,
                        .in = hidden});
}

void absorb_layer(const ForwardModel& model, const ForwardBlock& block, int index, ConstRef head_outputs,
                  const LayerActivations& to) {
  absorb_up_to_mixed(model, block, index, head_outputs, to);
  const int64_t hidden = model.config.hidden_size, intermediate = model.config.intermediate_size;
  model.backend.silu_mul({.gate = to.gate, .up = to.up, .output = to.mixed, .count = block.tokens * intermediate});
  const Tensor& down = model.weights.layers[static_cast<size_t>(index)].down;
  model.backend.linear({.input = to.mixed,
                        .products = {product(down, kNoBias, hidden, to.output, to.middle)},
                        .rows = block.tokens,
                        .in = intermediate});
}

void norm_head(const ForwardModel& model, ConstRef hidden, int64_t rows, Ref normed) {
  model.backend.rms_norm({.input = hidden,
                          .weight = model.weights.final_norm.ref(),
                          .output = normed,
                          .rows = rows,
                          .width = model.config.hidden_size,
                          .epsilon = static_cast<float>(model.config.rms_norm_eps)});
}

void head_logits(const ForwardModel& model, ConstRef normed, int64_t rows, float* logits) {
  const Ref output{logits, DType::kF32};
  model.backend.linear(
      {.input = normed,
       .products = {product(model.weights.output_embedding(), kNoBias, model.config.vocab_size, output)},
       .rows = rows,
       .in = model.config.hidden_size});
}

}  // namespace kv
