#include "policies/parts/duo_attention.h"

#include <limits>

#include "kernels/add.h"
#include "kernels/mix_heads.h"

namespace kv {

DuoAttention::DuoAttention(Backend& backend, const ModelConfig& config, const Streaming& streaming,
                           std::span<const float> alphas, bool deterministic)
    : backend_(backend),
      config_(config),
      streaming_(streaming),
      full_(backend, config, deterministic),
      streamed_(backend, config, deterministic),
      alphas_(backend, DType::kF32, std::ssize(alphas)),
      alpha_gradient_(backend, DType::kF32, std::ssize(alphas)),
      full_outputs_(static_cast<size_t>(config.layers)),
      streamed_outputs_(static_cast<size_t>(config.layers)) {
  alphas_.upload(alphas.data(), alphas.size_bytes());
  alpha_gradient_.fill_zero();
}

void DuoAttention::begin(const Block& block) {
  block_ = &block;
  full_.begin(block);
  streamed_.begin(block);
  // Beyond the window a key that is no sink is not seen at all.
  std::vector<float> bias(static_cast<size_t>(block.tokens * config_.kv_heads),
                          -std::numeric_limits<float>::infinity());
  for (const Segment& segment : block.segments) {
    const int64_t sinks = std::min<int64_t>(streaming_.sinks, segment.count);
    std::fill_n(bias.begin() + segment.first_token * config_.kv_heads, sinks * config_.kv_heads, 0.0F);
  }
  key_bias_.reserve(backend_, DType::kF32, std::ssize(bias));
  key_bias_gradient_.reserve(backend_, DType::kF32, std::ssize(bias));
  backend_.upload(key_bias_.ref().data, bias.data(), bias.size() * sizeof(float));
}

KeyBias DuoAttention::streams() const {
  return {.form = KeyBias::Form::kOutsideWindow,
          .window = streaming_.window,
          .values = key_bias_.ref().as<float>(),
          .far_keys = streaming_.sinks};
}

void DuoAttention::attend(int layer, const Projections& projections, Ref output) {
  const int64_t count = block_->tokens * config_.q_size();
  Tensor& full = full_outputs_[static_cast<size_t>(layer)];
  Tensor& streamed = streamed_outputs_[static_cast<size_t>(layer)];
  for (Tensor* outputs : {&full, &streamed}) outputs->reserve(backend_, backend_.activation_type(), count);
  full_.attend(layer, projections, {}, full.ref());
  streamed_.attend(layer, projections, streams(), streamed.ref());
  backend_.mix_heads({.first = full.ref(),
                      .second = streamed.ref(),
                      .shares = alphas_.ref().as<float>() + layer * config_.kv_heads,
                      .output = output,
                      .tokens = block_->tokens,
                      .q_heads = config_.heads,
                      .kv_heads = config_.kv_heads,
                      .head_dim = config_.head_dim});
}

ProjectionGradients DuoAttention::scratch() {
  const int64_t keys = block_->tokens * config_.kv_size();
  query_gradient_.reserve(backend_, backend_.activation_type(), block_->tokens * config_.q_size());
  key_gradient_.reserve(backend_, backend_.activation_type(), keys);
  value_gradient_.reserve(backend_, backend_.activation_type(), keys);
  return {.queries = query_gradient_.ref(), .keys = key_gradient_.ref(), .values = value_gradient_.ref()};
}

void DuoAttention::backward(int layer, const Projections& projections, const Output& output,
                            const ProjectionGradients& gradients) {
  const int64_t queries = block_->tokens * config_.q_size(), keys = block_->tokens * config_.kv_size();
  const Tensor& full = full_outputs_[static_cast<size_t>(layer)];
  const Tensor& streamed = streamed_outputs_[static_cast<size_t>(layer)];
  for (Tensor* gradient : {&full_gradient_, &streamed_gradient_}) {
    gradient->reserve(backend_, backend_.activation_type(), queries);
  }
  backend_.mix_heads_backward({.first = full.ref(),
                               .second = streamed.ref(),
                               .shares = alphas_.ref().as<float>() + layer * config_.kv_heads,
                               .output_gradient = output.gradient,
                               .first_gradient = full_gradient_.ref(),
                               .second_gradient = streamed_gradient_.ref(),
                               .share_gradient = alpha_gradient_.ref().as<float>() + layer * config_.kv_heads,
                               .tokens = block_->tokens,
                               .q_heads = config_.heads,
                               .kv_heads = config_.kv_heads,
                               .head_dim = config_.head_dim});
  if (layer == 0) return;  // what is learned has its gradient, and nobody reads those of projections
  full_.backward(layer, projections, {}, {full.ref(), full_gradient_.ref()}, gradients, nullptr);
  const ProjectionGradients others = scratch();
  streamed_.backward(layer, projections, streams(), {streamed.ref(), streamed_gradient_.ref()}, others,
                     key_bias_gradient_.ref().as<float>());
  const auto add = [&](Ref to, ConstRef other, int64_t count) {
    backend_.add({.first = to, .second = other, .output = to, .count = count});
  };
  add(gradients.queries, others.queries, queries);
  add(gradients.keys, others.keys, keys);
  add(gradients.values, others.values, keys);
}

}  // namespace kv
