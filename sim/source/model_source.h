#pragma once

#include <memory>
#include <vector>

#include "kernels/tensor.h"
#include "sim/model/forward.h"
#include "sim/model/weights.h"
#include "sim/source/source.h"

namespace kv {

// A transformer run, the owner of a forward pass's buffers (sim/model/forward.h): continues the forward pass with
// whatever attention output it is given, so the effect of an eviction reaches later layers and tokens. Weights are
// copied to the backend once, in its activation type, and shared by all replays.
class ModelSource final : public Source {
 public:
  ModelSource(Backend& backend, const Weights& weights);
  // A twin (Source::twin): with the weights of `other`, which must outlive it.
  ModelSource(Backend& backend, const ModelSource& other);
  ~ModelSource() override;

  const SourceInfo& info() const override { return info_; }
  // Throws UserError: an id outside the vocabulary, a sequence longer than a sliding window.
  void begin(std::span<const std::span<const int32_t>> sequences) override;
  void start(const Block& block) override;
  Projections project(int layer) override;
  // Of blocks of single tokens, as a step of generation has them.
  bool keeps_keys() const override { return block_->max_count <= 1; }
  void absorb(int layer, ConstRef head_outputs) override;
  void finish(TokenLosses& losses) override;
  ConstRef output_weight(int layer) const override;
  const ForwardModel* frozen_model() const override { return &model_; }
  std::unique_ptr<Source> twin(Backend& backend) const override;
  size_t activation_bytes(int64_t tokens, int64_t sequences) const override;

  // Generation: as start() and finish(), but with ids [tokens] on the backend, checked by the caller, and of the
  // block's `count` rows `rows` (on the backend; null: all tokens) only what comes next: logits [count, vocab].
  void start(const Block& block, const int32_t* ids);
  void next_logits(const int32_t* rows, int64_t count, float* logits);
  // Throws UserError where the model cannot take sequences that long.
  void check_length(int64_t tokens) const;

  int vocab() const { return config_.vocab_size; }
  size_t weight_bytes() const { return weight_bytes_; }
  // Keeps the logits of the last `positions` tokens of every sequence from the next begin on.
  void keep_logits_tail(int positions) { tail_positions_ = positions; }
  // [positions, vocab] of one sequence, host memory.
  const std::vector<float>& logits_tail(int sequence) const { return logits_tail_.at(static_cast<size_t>(sequence)); }

 private:
  void check_ids() const;
  void take(const Block& block);
  ForwardBlock forward_block() const;
  LayerActivations activations(int layer);
  // The losses of the block's tokens [first_token, first_token + tokens); logits [tokens, vocab] or null, backend
  // memory.
  void token_loss(int64_t first_token, int64_t tokens, float* logits);
  void save_logits_tail();

  Backend& backend_;
  ModelConfig config_;
  SourceInfo info_;
  size_t weight_bytes_;
  std::shared_ptr<const ModelTensors> weights_;  // one for all twins
  ForwardModel model_;                           // of the two

  std::vector<std::span<const int32_t>> sequences_;
  const Block* block_ = nullptr;
  ForwardBuffers buffers_;
  Tensor keys_, rotated_keys_;     // [layers, tokens, kv_size], of a block whose keys are kept
  Tensor ids_, targets_;           // [tokens]
  Tensor nll_, entropy_, argmax_;  // [tokens]
  Tensor last_;                    // [rows, hidden] whose next tokens are asked for
  int tail_positions_ = 0;
  std::vector<std::vector<float>> logits_tail_;
};

}  // namespace kv
