#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/biased_attention.h"
#include "kernels/tensor.h"
#include "sim/cache/block.h"
#include "sim/learned/student_attention.h"
#include "sim/model/model_config.h"

namespace kv {

// Softmax attention over whole sequences, layer by layer, and its way back (kernels/biased_attention.h): what student
// attentions are made of. Between the two it keeps each layer's log sums, [tokens, q_heads] f32.
class PackedSoftmax {
 public:
  PackedSoftmax(Backend& backend, const ModelConfig& config, bool deterministic)
      : backend_(backend), config_(config), deterministic_(deterministic) {}

  // The block stays until the next one.
  void begin(const Block& block);
  void attend(int layer, const Projections& projections, const KeyBias& bias, Ref output);
  // By the same bias. Gradients of queries, keys and values are replaced, and so is bias_gradient [tokens, kv_heads],
  // which is null without a bias.
  void backward(int layer, const Projections& projections, const KeyBias& bias, const StudentAttention::Output& output,
                const ProjectionGradients& gradients, float* bias_gradient);

 private:
  int64_t of_layer() const { return block_->tokens * config_.heads; }
  PackedAttention attention(const Projections& projections, const KeyBias& bias) const;

  Backend& backend_;
  const ModelConfig& config_;
  bool deterministic_;  // BiasedAttentionBackwardArgs
  const Block* block_ = nullptr;
  Tensor log_sums_;  // [layers, tokens, q_heads]
};

// The model's own attention.
class PlainAttention final : public StudentAttention {
 public:
  PlainAttention(Backend& backend, const ModelConfig& config) : softmax_(backend, config, true) {}

  void begin(const Block& block) override { softmax_.begin(block); }
  void attend(int layer, const Projections& projections, Ref output) override {
    softmax_.attend(layer, projections, {}, output);
  }
  void backward(int layer, const Projections& projections, const Output& output,
                const ProjectionGradients& gradients) override {
    softmax_.backward(layer, projections, {}, output, gradients, nullptr);
  }

 private:
  PackedSoftmax softmax_;
};

}  // namespace kv
