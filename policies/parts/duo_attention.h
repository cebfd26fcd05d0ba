#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "sim/learned/packed_softmax.h"
#include "sim/learned/student_attention.h"

namespace kv {

// Attention as DuoAttention trains which heads retrieve: each head's output is α times that of full attention and 1 − α
// times that of the first tokens and a window, α a number a KV head.
class DuoAttention final : public StudentAttention {
 public:
  struct Streaming {
    int sinks = 0, window = 0;
  };
  // alphas [layers, kv_heads]
  DuoAttention(Backend& backend, const ModelConfig& config, const Streaming& streaming, std::span<const float> alphas,
               bool deterministic);

  void begin(const Block& block) override;
  void attend(int layer, const Projections& projections, Ref output) override;
  void backward(int layer, const Projections& projections, const Output& output,
                const ProjectionGradients& gradients) override;

  // [layers, kv_heads], of all blocks so far.
  std::unique_ptr<Download> alpha_gradient() const { return alpha_gradient_.begin_download(); }

 private:
  KeyBias streams() const;
  ProjectionGradients scratch();

  Backend& backend_;
  const ModelConfig& config_;
  Streaming streaming_;
  PackedSoftmax full_, streamed_;
  const Block* block_ = nullptr;
  Tensor alphas_, alpha_gradient_;                         // [layers, kv_heads]
  Tensor key_bias_, key_bias_gradient_;                    // [tokens, kv_heads]
  std::vector<Tensor> full_outputs_, streamed_outputs_;    // [layers], [tokens, q_heads, head_dim] each
  Tensor full_gradient_, streamed_gradient_;               // [tokens, q_heads, head_dim]
  Tensor query_gradient_, key_gradient_, value_gradient_;  // of what streams
};

}  // namespace kv
