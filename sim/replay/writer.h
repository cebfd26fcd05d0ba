#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "sim/replay/sampling.h"
#include "sim/source/model_source.h"

namespace kv {

struct WriterArgs {
  Backend& backend;
  ModelSource& model;
  std::span<const std::span<const int32_t>> prompts;
  std::span<const int32_t> sample_numbers;  // [prompts]; empty = 0, 1, 2, …
  Sampling sampling;
  int max_new_tokens = 0;
};

// The model, with its next tokens drawn on the backend: prompts come from the host, what follows from the draws.
class Writer final : public Source {
 public:
  explicit Writer(const WriterArgs& args);

  const SourceInfo& info() const override { return model_.info(); }
  void begin(std::span<const std::span<const int32_t>> sequences) override { model_.begin(sequences); }
  Projections project(int layer) override { return model_.project(layer); }
  bool keeps_keys() const override { return model_.keeps_keys(); }
  void absorb(int layer, ConstRef head_outputs) override { model_.absorb(layer, head_outputs); }
  ConstRef output_weight(int layer) const override { return model_.output_weight(layer); }
  void start(const Block& block) override;
  void finish(TokenLosses& losses) override;

  // From now on blocks have one token of each of these sequences, after which `newest` [sequences of the batch] come.
  void decode(std::span<const int32_t> active, std::span<const int32_t> newest);

  // Ids [first, first + count) after each prompt, [count, sequences]. Throws NotFiniteError where any of the logits so
  // far is NaN or infinite: what was drawn from them means nothing.
  std::vector<int32_t> texts(int first, int count) const;

 private:
  Tensor uploaded(const std::vector<int32_t>& values) const;
  void draw_first();
  void draw(const int32_t* rows, const int32_t* positions, int64_t count);
  void check_logits() const;

  const WriterArgs args_;
  Backend& backend_;
  ModelSource& model_;
  const Block* block_ = nullptr;
  bool decoding_ = false;
  Tensor origins_, numbers_;  // [sequences]
  Tensor sequences_, ids_;    // [rows of the block]
  Tensor logits_;             // [rows of the block, vocab]
  Tensor texts_;              // [new tokens, sequences]
  Tensor bad_logit_;          // the number of the first that is not finite (kernels/find_bad.h)
};

}  // namespace kv
