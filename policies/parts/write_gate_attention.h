#pragma once

#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "policies/parts/write_gate_network.h"
#include "sim/learned/packed_softmax.h"
#include "sim/learned/student_attention.h"

namespace kv {

// Attention as WG-KV trains its gates (004, Sec. 3.2): beyond a window a key's logits have log max(g, 1e-3) added, g
// the gate that the network gives the key's token. Inputs of gates are keys, so gradients go on into the layers below.
class WriteGateAttention final : public StudentAttention {
 public:
  // The network must already be in use, and stay alive.
  WriteGateAttention(Backend& backend, const ModelConfig& config, const WriteGateNetwork& network, int window,
                     WriteGateGradients& gradients, bool deterministic)
      : backend_(backend),
        config_(config),
        network_(network),
        window_(window),
        gradients_(gradients),
        softmax_(backend, config, deterministic) {}

  Reads reads() const override { return {.pre_rope_keys = true}; }
  void begin(const Block& block) override;
  void attend(int layer, const Projections& projections, Ref output) override;
  void backward(int layer, const Projections& projections, const Output& output,
                const ProjectionGradients& gradients) override;

  // Of all layers, [layers, tokens, kv_heads], once each was attended; and where whoever finds another loss in them
  // adds that gradient before anything goes back, which begin() has set to 0.
  const float* gates() const { return gates_.ref().as<float>(); }
  float* gate_gradient() { return gate_gradient_.ref().as<float>(); }

 private:
  int64_t of_layer() const { return block_->tokens * config_.kv_heads; }
  KeyBias bias(int layer) const;

  Backend& backend_;
  const ModelConfig& config_;
  const WriteGateNetwork& network_;
  int window_;
  WriteGateGradients& gradients_;
  PackedSoftmax softmax_;
  const Block* block_ = nullptr;
  Tensor gates_, log_gates_, gate_gradient_;  // [layers, tokens, kv_heads]
  Tensor log_gate_gradient_;                  // [tokens, kv_heads]
};

}  // namespace kv
