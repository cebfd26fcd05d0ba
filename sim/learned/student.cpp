#include "sim/learned/student.h"

#include "kernels/check.h"
#include "sim/learned/packed_softmax.h"

namespace kv {

template <class Buffers, class Visit>
void Student::for_each_buffer(Buffers& buffers, const ModelConfig& config, const Visit& visit) {
  const bool has_raw = config.qk_norm;  // else they are one with q and k
  visit(buffers.normed, config.hidden_size);
  visit(buffers.raw_q, has_raw ? config.q_size() : 0);
  visit(buffers.raw_k, has_raw ? config.kv_size() : 0);
  for (auto* of_queries : {&buffers.q, &buffers.q_rotated, &buffers.query_gradient, &buffers.head_output_gradient}) {
    visit(*of_queries, config.q_size());
  }
  for (auto* of_keys : {&buffers.k, &buffers.v, &buffers.k_rotated, &buffers.key_gradient, &buffers.value_gradient,
                        &buffers.pre_rope_key_gradient}) {
    visit(*of_keys, config.kv_size());
  }
  for (auto* of_stream : {&buffers.middle, &buffers.normed_middle, &buffers.input_gradient}) {
    visit(*of_stream, config.hidden_size);
  }
  for (auto* of_mlp : {&buffers.gate, &buffers.up, &buffers.mixed}) visit(*of_mlp, config.intermediate_size);
}

size_t Student::bytes(const Backend& backend, const ModelConfig& config, int64_t tokens) {
  const LayerBuffers none;
  int64_t widths = int64_t{config.layers + 1} * config.hidden_size + int64_t{config.layers} * config.q_size();
  for_each_buffer(none, config, [&](const Tensor&, int64_t width) { widths += width; });
  return static_cast<size_t>(tokens * widths) * bytes_of(backend.activation_type());
}

void Student::reserve(const Block& block) {
  block_ = &block;
  Backend& backend = model_.backend;
  const ModelConfig& config = model_.config;
  const auto make_room = [&](Tensor& tensor, int64_t width) {
    if (width > 0) tensor.reserve(backend, backend.activation_type(), block.tokens * width);
  };
  inputs_.resize(static_cast<size_t>(config.layers) + 1);
  head_outputs_.resize(static_cast<size_t>(config.layers));
  for (Tensor& input : inputs_) make_room(input, config.hidden_size);
  for (Tensor& outputs : head_outputs_) make_room(outputs, config.q_size());
  for_each_buffer(layer_, config, make_room);
}

ForwardBlock Student::forward_block() const {
  return {.tokens = block_->tokens, .positions = block_->device_positions.ref().as<int32_t>()};
}

LayerActivations Student::activations(int layer) {
  const auto at = static_cast<size_t>(layer);
  const bool has_raw = model_.config.qk_norm;
  return {.input = inputs_[at].ref(),
          .normed = layer_.normed.ref(),
          .raw_q = (has_raw ? layer_.raw_q : layer_.q).ref(),
          .raw_k = (has_raw ? layer_.raw_k : layer_.k).ref(),
          .q = layer_.q.ref(),
          .k = layer_.k.ref(),
          .v = layer_.v.ref(),
          .q_rotated = layer_.q_rotated.ref(),
          .k_rotated = layer_.k_rotated.ref(),
          .middle = layer_.middle.ref(),
          .normed_middle = layer_.normed_middle.ref(),
          .gate = layer_.gate.ref(),
          .up = layer_.up.ref(),
          .mixed = layer_.mixed.ref(),
          .output = inputs_[at + 1].ref()};
}

// One residual stream for all layers.
LayerActivations Student::activations_in_place() {
  LayerActivations to = activations(0);
  to.middle = to.output = to.input;
  return to;
}

ConstRef Student::run(const Block& block, const int32_t* ids, StudentAttention& attention) {
  reserve(block);
  attention_ = &attention;
  attention.begin(block);
  embed_tokens(model_, forward_block(), ids, inputs_.front().ref());
  for (int layer = 0; layer < model_.config.layers; ++layer) {
    const LayerActivations to = activations(layer);
    const Ref head_outputs = head_outputs_[static_cast<size_t>(layer)].ref();
    attention.attend(layer, project_layer(model_, forward_block(), layer, to), head_outputs);
    absorb_layer(model_, forward_block(), layer, head_outputs, to);
  }
  norm_head(model_, inputs_.back().ref(), block.tokens, layer_.normed.ref());
  return layer_.normed.ref();
}

ConstRef Student::teach(const Block& block, const int32_t* ids) {
  reserve(block);
  attention_ = nullptr;
  PlainAttention attention(model_.backend, model_.config);
  attention.begin(block);
  const LayerActivations to = activations_in_place();
  embed_tokens(model_, forward_block(), ids, to.input);
  for (int layer = 0; layer < model_.config.layers; ++layer) {
    const Ref head_outputs = head_outputs_.front().ref();
    attention.attend(layer, project_layer(model_, forward_block(), layer, to), head_outputs);
    absorb_layer(model_, forward_block(), layer, head_outputs, to);
  }
  norm_head(model_, to.output, block.tokens, layer_.normed.ref());
  return layer_.normed.ref();
}

ProjectionGradients Student::zeroed_gradients() {
  const StudentAttention::Reads reads = attention_->reads();
  ProjectionGradients gradients{
      .queries = layer_.query_gradient.ref(), .keys = layer_.key_gradient.ref(), .values = layer_.value_gradient.ref()};
  if (reads.pre_rope_keys) {
    layer_.pre_rope_key_gradient.fill_zero();
    gradients.pre_rope_keys = layer_.pre_rope_key_gradient.ref();
  }
  if (reads.inputs) {
    layer_.input_gradient.fill_zero();
    gradients.inputs = layer_.input_gradient.ref();
  }
  return gradients;
}

void Student::backward_layer(int layer, Ref residual) {
  const LayerActivations of = activations(layer);
  const ForwardBlock block = forward_block();
  const ConstRef head_outputs = std::as_const(head_outputs_[static_cast<size_t>(layer)]).ref();
  const Projections projections = project_layer(model_, block, layer, of);
  absorb_up_to_mixed(model_, block, layer, head_outputs, of);
  const Ref head_output_gradient = layer_.head_output_gradient.ref();
  backward_absorb(model_, block, layer, of, residual, head_output_gradient);
  const ProjectionGradients gradients = zeroed_gradients();
  attention_->backward(layer, projections, {head_outputs, head_output_gradient}, gradients);
  // Below the first layer there is nothing that learns.
  if (layer > 0) backward_project(model_, block, layer, of, gradients, residual);
}

void Student::backward(Ref normed_gradient) {
  KV_CHECK(attention_);
  backward_norm_head(model_, inputs_.back().ref(), normed_gradient, block_->tokens, normed_gradient);
  for (int layer = model_.config.layers - 1; layer >= 0; --layer) backward_layer(layer, normed_gradient);
}

}  // namespace kv
