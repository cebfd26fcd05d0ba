#include "sim/learned/packed_softmax.h"

#include <cmath>
#include <utility>

namespace kv {

void PackedSoftmax::begin(const Block& block) {
  block_ = &block;
  log_sums_.reserve(backend_, DType::kF32, config_.layers * of_layer());
}

PackedAttention PackedSoftmax::attention(const Projections& projections, const KeyBias& bias) const {
  return {.queries = projections.queries,
          .keys = projections.keys,
          .values = projections.values,
          .bias = bias,
          .segments = block_->on_device(),
          .segment_count = std::ssize(block_->segments),
          .max_count = block_->max_count,
          .tokens = block_->tokens,
          .q_heads = config_.heads,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim,
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim)))};
}

void PackedSoftmax::attend(int layer, const Projections& projections, const KeyBias& bias, Ref output) {
  backend_.biased_attention({.attention = attention(projections, bias),
                             .output = output,
                             .log_sums = log_sums_.ref().as<float>() + layer * of_layer()});
}

void PackedSoftmax::backward(int layer, const Projections& projections, const KeyBias& bias,
                             const StudentAttention::Output& output, const ProjectionGradients& gradients,
                             float* bias_gradient) {
  backend_.biased_attention_backward({.attention = attention(projections, bias),
                                      .output = output.values,
                                      .log_sums = std::as_const(log_sums_).ref().as<float>() + layer * of_layer(),
                                      .output_gradient = output.gradient,
                                      .query_gradient = gradients.queries,
                                      .key_gradient = gradients.keys,
                                      .value_gradient = gradients.values,
                                      .bias_gradient = bias_gradient,
                                      .deterministic = deterministic_});
}

}  // namespace kv
