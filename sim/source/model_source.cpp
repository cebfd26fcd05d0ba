#include "sim/source/model_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/embed.h"
#include "kernels/error.h"
#include "kernels/token_loss.h"

namespace kv {

ModelSource::ModelSource(Backend& backend, const Weights& weights)
    : backend_(backend),
      config_(weights.config()),
      weight_bytes_(static_cast<size_t>(parameters_of(config_)) * bytes_of(backend.activation_type())),
      weights_(std::make_shared<const ModelTensors>(load_tensors(weights, backend))),
      model_(forward_model(backend, config_, *weights_)) {
  std::vector<float> inv_freq(static_cast<size_t>(model_.inv_freq.elements()));
  model_.inv_freq.download(inv_freq.data(), model_.inv_freq.bytes());
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
           .has_pre_rope_keys = true,
           .has_inputs = true,
           .has_output_weight = true,
           .inv_freq = std::move(inv_freq),
           .attention_factor = model_.attention_factor};
  for (int layer = 0; layer < config_.layers; ++layer) info_.layer_numbers.push_back(layer);
}

ModelSource::ModelSource(Backend& backend, const ModelSource& other)
    : backend_(backend),
      config_(other.config_),
      info_(other.info_),
      weight_bytes_(other.weight_bytes_),
      weights_(other.weights_),
      model_(forward_model(backend, config_, *weights_)) {}

ModelSource::~ModelSource() = default;

std::unique_ptr<Source> ModelSource::twin(Backend& backend) const {
  return std::make_unique<ModelSource>(backend, *this);
}

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

size_t ModelSource::activation_bytes(int64_t tokens, int64_t sequences) const {
  // Two f32 and three i32 a token beside what the layers write.
  const int64_t kept = 2 * sequences * config_.layers * config_.kv_size();
  return ForwardBuffers::bytes(backend_, config_, tokens) + static_cast<size_t>(tokens) * 20 +
         static_cast<size_t>(kept) * bytes_of(backend_.activation_type());
}

void ModelSource::take(const Block& block) {
  block_ = &block;
  const int64_t tokens = block.tokens;
  buffers_.reserve(backend_, config_, tokens);
  nll_.reserve(backend_, DType::kF32, tokens);
  entropy_.reserve(backend_, DType::kF32, tokens);
  argmax_.reserve(backend_, DType::kI32, tokens);
  ids_.reserve(backend_, DType::kI32, tokens);
  targets_.reserve(backend_, DType::kI32, tokens);
  if (!keeps_keys()) return;
  for (Tensor* keys : {&keys_, &rotated_keys_}) {
    keys->reserve(backend_, backend_.activation_type(), config_.layers * tokens * config_.kv_size());
  }
}

ForwardBlock ModelSource::forward_block() const {
  return {.tokens = block_->tokens, .positions = block_->device_positions.ref().as<int32_t>()};
}

void ModelSource::start(const Block& block) {
  take(block);
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
  embed_tokens(model_, forward_block(), ids_.ref().as<int32_t>(), buffers_.hidden.ref());
}

void ModelSource::start(const Block& block, const int32_t* ids) {
  take(block);
  embed_tokens(model_, forward_block(), ids, buffers_.hidden.ref());
}

LayerActivations ModelSource::activations(int layer) {
  LayerActivations of = buffers_.layer();
  if (!keeps_keys()) return of;
  const int64_t first = layer * block_->tokens * config_.kv_size();
  of.raw_k = of.k = keys_.at(first);
  of.k_rotated = rotated_keys_.at(first);
  return of;
}

Projections ModelSource::project(int layer) {
  return project_layer(model_, forward_block(), layer, activations(layer));
}

void ModelSource::absorb(int layer, ConstRef head_outputs) {
  absorb_layer(model_, forward_block(), layer, head_outputs, activations(layer));
}

void ModelSource::token_loss(int64_t first_token, int64_t tokens, float* logits) {
  backend_.token_loss({.hidden = buffers_.normed.at(first_token * config_.hidden_size),
                       .weight = weights_->output_embedding().ref(),
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
  norm_head(model_, buffers_.hidden.ref(), tokens, buffers_.normed.ref());
  token_loss(0, tokens, nullptr);
  losses.nll.resize(static_cast<size_t>(tokens));
  losses.entropy.resize(static_cast<size_t>(tokens));
  losses.argmax.resize(static_cast<size_t>(tokens));
  nll_.download(losses.nll.data(), losses.nll.size() * sizeof(float));
  entropy_.download(losses.entropy.data(), losses.entropy.size() * sizeof(float));
  argmax_.download(losses.argmax.data(), losses.argmax.size() * sizeof(int32_t));
  losses.hidden = std::as_const(buffers_.normed).ref();
  if (tail_positions_ > 0) save_logits_tail();
}

void ModelSource::next_logits(const int32_t* rows, int64_t count, float* logits) {
  ConstRef chosen = buffers_.hidden.ref();
  if (rows) {
    last_.reserve(backend_, backend_.activation_type(), count * config_.hidden_size);
    backend_.embed({.table = buffers_.hidden.ref(),
                    .ids = rows,
                    .output = last_.ref(),
                    .rows = count,
                    .width = config_.hidden_size});
    chosen = last_.ref();
  }
  norm_head(model_, chosen, count, buffers_.normed.ref());
  head_logits(model_, buffers_.normed.ref(), count, logits);
}

void ModelSource::save_logits_tail() {
  const int64_t vocab = config_.vocab_size;
  for (const Segment& segment : block_->segments) {
    const int64_t length = std::ssize(sequences_[static_cast<size_t>(segment.sequence)]);
    const int64_t end = segment.first_position + segment.count;
    const int64_t first = std::max<int64_t>(segment.first_position, length - tail_positions_);
    if (first >= end) continue;
    Tensor logits(backend_, DType::kF32, (end - first) * vocab);
    // Not linear(): it would round the logits to the activation type.
    token_loss(segment.first_token + first - segment.first_position, end - first, logits.ref().as<float>());
    auto& tail = logits_tail_[static_cast<size_t>(segment.sequence)];
    const size_t before = tail.size();
    tail.resize(before + static_cast<size_t>(logits.elements()));
    logits.download(tail.data() + before, logits.bytes());
  }
}

ConstRef ModelSource::output_weight(int layer) const { return weights_->layers[static_cast<size_t>(layer)].o.ref(); }

}  // namespace kv
