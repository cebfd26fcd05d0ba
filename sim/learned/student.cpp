#include "sim/learned/student.h"

#include <algorithm>

#include "kernels/check.h"
#include "sim/learned/packed_softmax.h"

namespace kv {

namespace {

// Numbers of a buffer in memory that others share: each begins where a cache line does, as ops like their operands.
int64_t padded(int64_t numbers) {
  constexpr int64_t kNumbers = 64;
  return (numbers + kNumbers - 1) / kNumbers * kNumbers;
}

}  // namespace

template <class Visit>
void Student::LayerBuffers::for_each(const ModelConfig& config, const Visit& visit) {
  const bool has_raw = config.qk_norm;  // else they are one with q and k
  visit(raw_q, has_raw ? config.q_size() : 0);
  visit(raw_k, has_raw ? config.kv_size() : 0);
  for (Ref* of_queries : {&q, &q_rotated}) visit(*of_queries, config.q_size());
  for (Ref* of_keys : {&k, &v, &k_rotated}) visit(*of_keys, config.kv_size());
  for (Ref* of_stream : {&normed, &middle, &normed_middle}) visit(*of_stream, config.hidden_size);
  for (Ref* of_mlp : {&gate, &up, &mixed}) visit(*of_mlp, config.intermediate_size);
}

Student::Buffers::Buffers(const Backend& backend, const ModelConfig& config, int64_t tokens, size_t most_kept)
    : inputs(static_cast<size_t>(config.layers) + 1), head_outputs(static_cast<size_t>(config.layers)) {
  int64_t of_layer = 0;
  LayerBuffers().for_each(config, [&](Ref&, int64_t width) { of_layer += padded(tokens * width); });
  const size_t bytes = static_cast<size_t>(of_layer) * bytes_of(backend.activation_type());
  kept.resize(std::clamp<size_t>(most_kept / bytes, 1, static_cast<size_t>(config.layers)));
}

template <class Visit>
void Student::Buffers::for_each(const ModelConfig& config, const Visit& visit) {
  for (Ref& input : inputs) visit(input, config.hidden_size);
  for (Ref& outputs : head_outputs) visit(outputs, config.q_size());
  for (LayerBuffers& of_layer : kept) of_layer.for_each(config, visit);
  for (Ref* of_queries : {&query_gradient, &head_output_gradient}) visit(*of_queries, config.q_size());
  for (Ref* of_keys : {&key_gradient, &value_gradient, &pre_rope_key_gradient}) visit(*of_keys, config.kv_size());
  for (Ref* of_stream : {&states, &input_gradient}) visit(*of_stream, config.hidden_size);
}

size_t Student::bytes(const Backend& backend, const ModelConfig& config, int64_t tokens, size_t most_kept) {
  int64_t numbers = 0;
  Buffers(backend, config, tokens, most_kept).for_each(config, [&](Ref&, int64_t width) {
    numbers += padded(tokens * width);
  });
  return static_cast<size_t>(numbers) * bytes_of(backend.activation_type());
}

void Student::reserve(const Block& block) {
  block_ = &block;
  Backend& backend = model_.backend;
  const size_t needed = bytes(backend, model_.config, block.tokens, most_kept_);
  const size_t number = bytes_of(backend.activation_type());
  if (memory_.bytes() < needed) memory_ = {};  // never the old beside the new
  memory_.reserve(backend, backend.activation_type(), static_cast<int64_t>(needed / number));
  buffers_.emplace(backend, model_.config, block.tokens, most_kept_);
  int64_t first = 0;
  buffers_->for_each(model_.config, [&](Ref& buffer, int64_t width) {
    buffer = memory_.at(first);
    first += padded(block.tokens * width);
  });
}

ForwardBlock Student::forward_block() const {
  return {.tokens = block_->tokens, .positions = block_->device_positions.ref().as<int32_t>()};
}

LayerActivations Student::activations(int layer) {
  const auto at = static_cast<size_t>(layer);
  const LayerBuffers& of = buffers_->kept[static_cast<size_t>(std::max(0, layer - first_kept()))];
  const bool has_raw = model_.config.qk_norm;
  return {.input = buffers_->inputs[at],
          .normed = of.normed,
          .raw_q = has_raw ? of.raw_q : of.q,
          .raw_k = has_raw ? of.raw_k : of.k,
          .q = of.q,
          .k = of.k,
          .v = of.v,
          .q_rotated = of.q_rotated,
          .k_rotated = of.k_rotated,
          .middle = of.middle,
          .normed_middle = of.normed_middle,
          .gate = of.gate,
          .up = of.up,
          .mixed = of.mixed,
          .output = buffers_->inputs[at + 1]};
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
  embed_tokens(model_, forward_block(), ids, buffers_->inputs.front());
  for (int layer = 0; layer < model_.config.layers; ++layer) {
    const LayerActivations to = activations(layer);
    const Ref head_outputs = buffers_->head_outputs[static_cast<size_t>(layer)];
    attention.attend(layer, project_layer(model_, forward_block(), layer, to), head_outputs);
    absorb_layer(model_, forward_block(), layer, head_outputs, to);
  }
  // Not in place of what the last layer's attention has read, which it reads again on the way back.
  norm_head(model_, buffers_->inputs.back(), block.tokens, buffers_->states);
  return buffers_->states;
}

void Student::teach(const Block& block, const int32_t* ids, Ref states) {
  reserve(block);
  attention_ = nullptr;
  PlainAttention attention(model_.backend, model_.config);
  attention.begin(block);
  const LayerActivations to = activations_in_place();
  embed_tokens(model_, forward_block(), ids, to.input);
  for (int layer = 0; layer < model_.config.layers; ++layer) {
    const Ref head_outputs = buffers_->head_outputs.front();
    attention.attend(layer, project_layer(model_, forward_block(), layer, to), head_outputs);
    absorb_layer(model_, forward_block(), layer, head_outputs, to);
  }
  norm_head(model_, to.output, block.tokens, states);
}

ProjectionGradients Student::zeroed_gradients(int layer) {
  if (layer == 0) return {};  // below it there is nothing that learns
  const StudentAttention::Reads reads = attention_->reads();
  const auto zeroed = [&](Ref gradient, int64_t width) {
    const auto count = static_cast<size_t>(block_->tokens * width);
    model_.backend.fill_zero(gradient.data, count * bytes_of(gradient.dtype));
    return gradient;
  };
  ProjectionGradients gradients{
      .queries = buffers_->query_gradient, .keys = buffers_->key_gradient, .values = buffers_->value_gradient};
  if (reads.pre_rope_keys) {
    gradients.pre_rope_keys = zeroed(buffers_->pre_rope_key_gradient, model_.config.kv_size());
  }
  if (reads.inputs) gradients.inputs = zeroed(buffers_->input_gradient, model_.config.hidden_size);
  return gradients;
}

void Student::backward_layer(int layer, Ref residual) {
  const LayerActivations of = activations(layer);
  const ForwardBlock block = forward_block();
  const ConstRef head_outputs = buffers_->head_outputs[static_cast<size_t>(layer)];
  if (layer < first_kept()) {
    project_layer(model_, block, layer, of);
    absorb_up_to_mixed(model_, block, layer, head_outputs, of);
  }
  const Ref head_output_gradient = buffers_->head_output_gradient;
  backward_absorb(model_, block, layer, of, residual, head_output_gradient);
  const ProjectionGradients gradients = zeroed_gradients(layer);
  attention_->backward(layer, projections_of(of), {head_outputs, head_output_gradient}, gradients);
  if (layer > 0) backward_project(model_, block, layer, of, gradients, residual);
}

void Student::backward(Ref normed_gradient) {
  KV_CHECK(attention_);
  backward_norm_head(model_, buffers_->inputs.back(), normed_gradient, block_->tokens, normed_gradient);
  for (int layer = model_.config.layers - 1; layer >= 0; --layer) backward_layer(layer, normed_gradient);
  attention_ = nullptr;
}

}  // namespace kv
