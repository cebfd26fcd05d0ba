#include "sim/source/model_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/embed.h"
#include "kernels/error.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/silu_mul.h"
#include "kernels/token_loss.h"

namespace kv {

ModelSource::ModelSource(Backend& backend, const Weights& weights)
    : backend_(backend),
      config_(weights.config()),
      weight_bytes_(static_cast<size_t>(parameters_of(config_)) * bytes_of(backend.activation_type())),
      weights_(load_tensors(weights, backend)) {
  const Rope rope = make_rope(config_.rope, config_.head_dim);
  info_ = {.name = fmt::format("{} model", family_name(config_.family)),
           .folder = weights.folder(),
           .layers = config_.layers,
           .q_heads = config_.heads,
           .kv_heads = config_.kv_heads,
           .head_dim = config_.head_dim,
           .width = config_.hidden_size,
           .layer_numbers = {},
           .has_losses = true,
           .has_pre_rope_queries = true,
           .has_output_weight = true,
           .inv_freq = std::vector<float>(rope.inv_freq.begin(), rope.inv_freq.end()),
           .attention_factor = static_cast<float>(rope.attention_factor)};
  for (int layer = 0; layer < config_.layers; ++layer) info_.layer_numbers.push_back(layer);
  inv_freq_ = Tensor(backend, DType::f32, static_cast<int64_t>(info_.inv_freq.size()));
  inv_freq_.upload(info_.inv_freq.data(), inv_freq_.bytes());
}

ModelSource::~ModelSource() = default;

void ModelSource::begin(std::span<const std::span<const int32_t>> sequences) {
  sequences_.assign(sequences.begin(), sequences.end());
  check_ids();
  logits_tail_.assign(sequences_.size(), {});
}

void ModelSource::check_length(int64_t tokens) const {
  if (config_.sliding_window == 0 || tokens <= config_.sliding_window) return;
  throw UserError(
      fmt::format("{}: a sequence of {} tokens exceeds the sliding window of {} (longer ones are not "
                  "supported for this model)",
                  info_.name, tokens, config_.sliding_window));
}

void ModelSource::check_ids() const {
  for (const auto& ids : sequences_) {
    check_length(std::ssize(ids));
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0 && ids[i] < config_.vocab_size) continue;
      throw UserError(fmt::format("{}: token id {} at position {} is outside the vocabulary of {}", info_.name, ids[i],
                                  i, config_.vocab_size));
    }
  }
}

size_t ModelSource::activation_bytes(int64_t tokens) const {
  // hidden, normed; q and k before and after the rotation, v; gate and up. Then two f32 and three i32 a token.
  const int64_t width = 2 * int64_t{config_.hidden_size} + 2 * config_.q_size() + 3 * config_.kv_size() +
                        2 * int64_t{config_.intermediate_size};
  return static_cast<size_t>(tokens) * (static_cast<size_t>(width) * bytes_of(backend_.activation_type()) + 20);
}

void ModelSource::make_room() {
  const int64_t tokens = block_->tokens;
  const auto rows = [&](Tensor& tensor, int64_t width) {
    tensor.reserve(backend_, backend_.activation_type(), tokens * width);
  };
  rows(hidden_, config_.hidden_size);
  rows(normed_, config_.hidden_size);
  rows(q_, config_.q_size());
  rows(k_, config_.kv_size());
  rows(v_, config_.kv_size());
  rows(q_rotated_, config_.q_size());
  rows(k_rotated_, config_.kv_size());
  rows(gate_, config_.intermediate_size);
  rows(up_, config_.intermediate_size);
  nll_.reserve(backend_, DType::f32, tokens);
  entropy_.reserve(backend_, DType::f32, tokens);
  argmax_.reserve(backend_, DType::i32, tokens);
  ids_.reserve(backend_, DType::i32, tokens);
  targets_.reserve(backend_, DType::i32, tokens);
}

void ModelSource::start(const Block& block) {
  block_ = &block;
  make_room();
  std::vector<int32_t> ids;
  std::vector<int32_t> targets;
  for (const Segment& segment : block.segments) {
    const auto& sequence = sequences_[static_cast<size_t>(segment.sequence)];
    for (int32_t i = 0; i < segment.count; ++i) {
      const size_t position = static_cast<size_t>(segment.first_position + i);
      ids.push_back(sequence[position]);
      targets.push_back(position + 1 < sequence.size() ? sequence[position + 1] : -1);
    }
  }
  ids_.upload(ids.data(), ids.size() * sizeof(int32_t));
  targets_.upload(targets.data(), targets.size() * sizeof(int32_t));
  embed(ids_.ref().as<int32_t>());
}

void ModelSource::start(const Block& block, const int32_t* ids) {
  block_ = &block;
  make_room();
  embed(ids);
}

void ModelSource::embed(const int32_t* ids) {
  backend_.embed({.table = weights_.embedding.ref(),
                  .ids = ids,
                  .output = hidden_.ref(),
                  .rows = block_->tokens,
                  .width = config_.hidden_size});
}

void ModelSource::linear(ConstRef input, int64_t in, const Tensor& weight, const Tensor& bias, Tensor& output,
                         int64_t out, ConstRef addend) {
  backend_.linear({.input = input,
                   .weight = weight.ref(),
                   .bias = bias.ref(),
                   .addend = addend,
                   .output = output.ref(),
                   .rows = block_->tokens,
                   .in = in,
                   .out = out});
}

void ModelSource::norm(ConstRef input, const Tensor& weight, Tensor& output, int64_t rows, int64_t width) {
  backend_.rms_norm({.input = input,
                     .weight = weight.ref(),
                     .output = output.ref(),
                     .rows = rows,
                     .width = width,
                     .epsilon = static_cast<float>(config_.rms_norm_eps)});
}

ConstRef ModelSource::head_norm(const Tensor& weight, Tensor& projected, int heads) {
  if (weight) norm(projected.ref(), weight, projected, block_->tokens * heads, config_.head_dim);
  return projected.ref();
}

void ModelSource::rotate(ConstRef input, Tensor& output, int heads) {
  backend_.rope({.input = input,
                 .positions = block_->device_positions.ref().as<int32_t>(),
                 .inv_freq = inv_freq_.ref().as<float>(),
                 .output = output.ref(),
                 .tokens = block_->tokens,
                 .heads = heads,
                 .head_dim = config_.head_dim,
                 .attention_factor = info_.attention_factor});
}

Projections ModelSource::project(int index) {
  const LayerTensors& layer = weights_.layers[static_cast<size_t>(index)];
  norm(hidden_.ref(), layer.input_norm, normed_, block_->tokens, config_.hidden_size);
  const ConstRef inputs = normed_.ref();
  linear(inputs, config_.hidden_size, layer.q, layer.q_bias, q_, config_.q_size());
  linear(inputs, config_.hidden_size, layer.k, layer.k_bias, k_, config_.kv_size());
  linear(inputs, config_.hidden_size, layer.v, layer.v_bias, v_, config_.kv_size());
  const ConstRef queries = head_norm(layer.q_norm, q_, config_.heads);
  const ConstRef keys = head_norm(layer.k_norm, k_, config_.kv_heads);
  rotate(queries, q_rotated_, config_.heads);
  rotate(keys, k_rotated_, config_.kv_heads);
  return {.queries = q_rotated_.ref(),
          .keys = k_rotated_.ref(),
          .values = v_.ref(),
          .pre_rope_queries = queries,
          .pre_rope_keys = keys,
          .inputs = inputs};
}

void ModelSource::absorb(int index, ConstRef head_outputs) {
  const LayerTensors& layer = weights_.layers[static_cast<size_t>(index)];
  linear(head_outputs, config_.q_size(), layer.o, layer.o_bias, hidden_, config_.hidden_size, hidden_.ref());
  norm(hidden_.ref(), layer.post_norm, normed_, block_->tokens, config_.hidden_size);
  linear(normed_.ref(), config_.hidden_size, layer.gate, {}, gate_, config_.intermediate_size);
  linear(normed_.ref(), config_.hidden_size, layer.up, {}, up_, config_.intermediate_size);
  backend_.silu_mul({.gate = gate_.ref(),
                     .up = up_.ref(),
                     .output = gate_.ref(),
                     .count = block_->tokens * config_.intermediate_size});
  linear(gate_.ref(), config_.intermediate_size, layer.down, {}, hidden_, config_.hidden_size, hidden_.ref());
}

void ModelSource::token_loss(int64_t first_token, int64_t tokens, float* logits) {
  backend_.token_loss({.hidden = normed_.at(first_token * config_.hidden_size),
                       .weight = weights_.output_embedding().ref(),
                       .targets = targets_.ref().as<int32_t>() + first_token,
                       .nll = nll_.ref().as<float>() + first_token,
                       .entropy = entropy_.ref().as<float>() + first_token,
                       .argmax = argmax_.ref().as<int32_t>() + first_token,
                       .logits = logits,
                       .rows = tokens,
                       .width = config_.hidden_size,
                       .vocab = config_.vocab_size});
}

void ModelSource::finish(TokenLosses& losses) {
  const int64_t tokens = block_->tokens;
  norm(hidden_.ref(), weights_.final_norm, normed_, tokens, config_.hidden_size);
  token_loss(0, tokens, nullptr);
  losses.nll.resize(static_cast<size_t>(tokens));
  losses.entropy.resize(static_cast<size_t>(tokens));
  losses.argmax.resize(static_cast<size_t>(tokens));
  nll_.download(losses.nll.data(), losses.nll.size() * sizeof(float));
  entropy_.download(losses.entropy.data(), losses.entropy.size() * sizeof(float));
  argmax_.download(losses.argmax.data(), losses.argmax.size() * sizeof(int32_t));
  if (tail_positions_ > 0) save_logits_tail();
}

void ModelSource::next_logits(const int32_t* rows, int64_t count, float* logits) {
  ConstRef chosen = hidden_.ref();
  if (rows) {
    last_.reserve(backend_, backend_.activation_type(), count * config_.hidden_size);
    backend_.embed(
        {.table = hidden_.ref(), .ids = rows, .output = last_.ref(), .rows = count, .width = config_.hidden_size});
    chosen = last_.ref();
  }
  norm(chosen, weights_.final_norm, normed_, count, config_.hidden_size);
  backend_.linear({.input = normed_.ref(),
                   .weight = weights_.output_embedding().ref(),
                   .output = {logits, DType::f32},
                   .rows = count,
                   .in = config_.hidden_size,
                   .out = config_.vocab_size});
}

void ModelSource::save_logits_tail() {
  const int64_t vocab = config_.vocab_size;
  for (const Segment& segment : block_->segments) {
    const int64_t length = std::ssize(sequences_[static_cast<size_t>(segment.sequence)]);
    const int64_t end = segment.first_position + segment.count;
    const int64_t first = std::max<int64_t>(segment.first_position, length - tail_positions_);
    if (first >= end) continue;
    Tensor logits(backend_, DType::f32, (end - first) * vocab);
    // Not linear(): it would round the logits to the activation type.
    token_loss(segment.first_token + first - segment.first_position, end - first, logits.ref().as<float>());
    auto& tail = logits_tail_[static_cast<size_t>(segment.sequence)];
    const size_t before = tail.size();
    tail.resize(before + static_cast<size_t>(logits.elements()));
    logits.download(tail.data() + before, logits.bytes());
  }
}

ConstRef ModelSource::output_weight(int layer) const { return weights_.layers[static_cast<size_t>(layer)].o.ref(); }

}  // namespace kv
