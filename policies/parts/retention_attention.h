#pragma once

#include "kernels/tensor.h"
#include "policies/parts/retention_network.h"
#include "sim/learned/packed_softmax.h"
#include "sim/learned/student_attention.h"

namespace kv {

// Attention as global retention trains its gates (003, Sec. 3): query i sees key j through β_j^(i − j), as (i − j) ·
// log β_j added to the logit, β the gate's of the key's token. Gates read the layer's normed inputs, so gradients go on
// into the layers below.
class RetentionAttention final : public StudentAttention {
 public:
  // The network must already be in use, and stay alive.
  RetentionAttention(Backend& backend, const ModelConfig& config, const RetentionNetwork& network,
                     RetentionGradients& gradients, bool deterministic)
      : backend_(backend),
        config_(config),
        network_(network),
        gradients_(gradients),
        softmax_(backend, config, deterministic) {}

  Reads reads() const override { return {.inputs = true}; }
  void begin(const Block& block) override;
  void attend(int layer, const Projections& projections, Ref output) override;
  void backward(int layer, const Projections& projections, const Output& output,
                const ProjectionGradients& gradients) override;

  // log β of all layers, [layers, tokens, kv_heads], once each was attended; and where whoever finds another loss in it
  // adds that gradient before anything goes back, which begin() has set to 0.
  const float* log_retention() const { return log_retention_.ref().as<float>(); }
  float* other_gradient() { return other_gradient_.ref().as<float>(); }

 private:
  int64_t of_layer() const { return block_->tokens * config_.kv_heads; }
  KeyBias bias(int layer) const;

  Backend& backend_;
  const ModelConfig& config_;
  const RetentionNetwork& network_;
  RetentionGradients& gradients_;
  PackedSoftmax softmax_;
  const Block* block_ = nullptr;
  Tensor log_retention_, other_gradient_;  // [layers, tokens, kv_heads]
  Tensor gradient_;                        // [tokens, kv_heads]
};

}  // namespace kv
