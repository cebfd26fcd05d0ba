#include "policies/parts/write_gate_attention.h"

namespace kv {

void WriteGateAttention::begin(const Block& block) {
  block_ = &block;
  softmax_.begin(block);
  for (Tensor* of_layers : {&gates_, &log_gates_, &gate_gradient_}) {
    of_layers->reserve(backend_, DType::kF32, config_.layers * of_layer());
  }
  log_gate_gradient_.reserve(backend_, DType::kF32, of_layer());
  gate_gradient_.fill_zero();
}

KeyBias WriteGateAttention::bias(int layer) const {
  return {.form = KeyBias::Form::kOutsideWindow,
          .window = window_,
          .values = log_gates_.ref().as<float>() + layer * of_layer()};
}

void WriteGateAttention::attend(int layer, const Projections& projections, Ref output) {
  WriteGateArgs gate = network_.args(layer, projections, block_->tokens);
  gate.gates = gates_.ref().as<float>() + layer * of_layer();
  gate.log_gates = log_gates_.ref().as<float>() + layer * of_layer();
  backend_.write_gate(gate);
  softmax_.attend(layer, projections, bias(layer), output);
}

void WriteGateAttention::backward(int layer, const Projections& projections, const Output& output,
                                  const ProjectionGradients& gradients) {
  auto* log_gate_gradient = log_gate_gradient_.ref().as<float>();
  softmax_.backward(layer, projections, bias(layer), output, gradients, log_gate_gradient);
  WriteGateBackwardArgs args{.forward = network_.args(layer, projections, block_->tokens),
                             .log_gate_gradient = log_gate_gradient,
                             .gate_gradient = gate_gradient_.ref().as<float>() + layer * of_layer(),
                             .pre_rope_key_gradient = gradients.pre_rope_keys};
  // Both or, at the first layer, neither, which spares the op a product.
  if (gradients.pre_rope_keys) args.key_gradient = gradients.keys;
  args.forward.gates = gates_.ref().as<float>() + layer * of_layer();
  gradients_.add_into(layer, args);
  backend_.write_gate_backward(args);
}

}  // namespace kv
