#include "policies/parts/retention_attention.h"

namespace kv {

void RetentionAttention::begin(const Block& block) {
  block_ = &block;
  softmax_.begin(block);
  for (Tensor* of_layers : {&log_retention_, &other_gradient_}) {
    of_layers->reserve(backend_, DType::kF32, config_.layers * of_layer());
  }
  gradient_.reserve(backend_, DType::kF32, of_layer());
  other_gradient_.fill_zero();
}

KeyBias RetentionAttention::bias(int layer) const {
  return {.form = KeyBias::Form::kDistance, .values = log_retention_.ref().as<float>() + layer * of_layer()};
}

void RetentionAttention::attend(int layer, const Projections& projections, Ref output) {
  RetentionGateArgs gate = network_.args(layer, projections, block_->tokens);
  gate.log_retention = log_retention_.ref().as<float>() + layer * of_layer();
  backend_.retention_gate(gate);
  softmax_.attend(layer, projections, bias(layer), output);
}

void RetentionAttention::backward(int layer, const Projections& projections, const Output& output,
                                  const ProjectionGradients& gradients) {
  auto* gradient = gradient_.ref().as<float>();
  auto* log_retention = log_retention_.ref().as<float>() + layer * of_layer();
  softmax_.backward(layer, projections, bias(layer), output, gradients, gradient);
  RetentionGateBackwardArgs args{.forward = network_.args(layer, projections, block_->tokens),
                                 .log_retention_gradient = gradient,
                                 .other_gradient = other_gradient_.ref().as<float>() + layer * of_layer(),
                                 .input_gradient = gradients.inputs};
  args.forward.log_retention = log_retention;
  gradients_.add_into(layer, args);
  backend_.retention_gate_backward(args);
}

}  // namespace kv
