#pragma once

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"
#include "sim/source/source.h"

namespace kv::ref {

// Post-RoPE tensors of one sample, a vector a layer. Pre-RoPE ones and inputs may be empty.
struct TinySample {
  std::vector<std::vector<float>> queries = {};           // [layers][tokens · q_heads · head_dim]
  std::vector<std::vector<float>> keys = {};              // [layers][tokens · kv_heads · head_dim]
  std::vector<std::vector<float>> values = {};            // [layers][tokens · kv_heads · head_dim]
  std::vector<std::vector<float>> pre_rope_queries = {};  // [layers][tokens · q_heads · head_dim]
  std::vector<std::vector<float>> pre_rope_keys = {};     // [layers][tokens · kv_heads · head_dim]
  std::vector<std::vector<float>> inputs = {};            // [layers][tokens · width]
};

// Layers, heads and width of a source without losses; frequencies of a rotary base of 100.
SourceInfo tiny_info(int layers, int q_heads, int kv_heads, int head_dim);

// Random tensors. Queries are large enough for attention to be far from uniform.
TinySample random_sample(const SourceInfo& info, int tokens, uint32_t seed);

// One layer and one KV head, head_dim 2, where query head g attends to entry j in proportion to weights[g][j], whoever
// asks: logit = ln weight. Group = number of weight rows, at most 2. Values are (1, 1), or (value_lengths[j], 0).
TinySample weighted_sample(const std::vector<std::vector<float>>& weights,
                           const std::vector<float>& value_lengths = {});

// Replays tensors from memory. A sequence's first token id is the number of its sample; the sequence may be shorter
// than the sample.
class TinySource final : public Source {
 public:
  TinySource(Backend& backend, SourceInfo info, std::vector<TinySample> samples);

  const SourceInfo& info() const override { return info_; }
  // The sample as the backend stores it (tests/support/backends.h: rounded), so that references start from equal
  // inputs.
  const TinySample& sample(int number) const { return samples_[static_cast<size_t>(number)]; }
  void begin(std::span<const std::span<const int32_t>> sequences) override;
  void start(const Block& block) override { block_ = &block; }
  Projections project(int layer) override;
  void absorb(int, ConstRef) override {}
  void finish(TokenLosses& losses) override { losses = {}; }
  ConstRef output_weight(int) const override { return {}; }

 private:
  using Member = std::vector<std::vector<float>> TinySample::*;
  ConstRef pack(Tensor& tensor, Member member, int layer, int64_t width);

  Backend& backend_;
  SourceInfo info_;
  std::vector<TinySample> samples_;
  std::vector<int32_t> numbers_;  // [sequences]
  const Block* block_ = nullptr;
  Tensor queries_, keys_, values_, pre_rope_queries_, pre_rope_keys_, inputs_;
};

}  // namespace kv::ref
