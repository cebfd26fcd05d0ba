#pragma once

#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "sim/source/source.h"
#include "sim/source/trace.h"

namespace kv {

// Replays recorded traces, one a sequence of the batch. The cache is closed-loop (attention is recomputed over what is
// retained), the hidden states are not fed back: absorb() does nothing and there are no losses under a policy.
class TraceSource final : public Source {
 public:
  // The traces must agree in layers and shapes and outlive the source. Throws UserError naming the one that differs.
  TraceSource(Backend& backend, std::span<const Trace* const> traces);

  const SourceInfo& info() const override { return info_; }
  // sequences[s] must be traces[s]'s ids, or a prefix of them.
  void want(const Wanted& wanted) override { wanted_ = wanted; }
  void begin(std::span<const std::span<const int32_t>> sequences) override;
  void start(const Block& block) override;
  Projections project(int layer) override;
  void absorb(int layer, ConstRef head_outputs) override;
  void finish(TokenLosses& losses) override;
  ConstRef output_weight(int layer) const override;

 private:
  ConstRef load(int layer, const char* what, int64_t width, Tensor& tensor);

  Backend& backend_;
  std::vector<const Trace*> traces_;
  SourceInfo info_;
  const Block* block_ = nullptr;
  Wanted wanted_;
  std::vector<float> staging_;
  Tensor queries_, keys_, values_, pre_rope_queries_, pre_rope_keys_, inputs_;
  std::vector<Tensor> output_weights_;  // [layers]
};

}  // namespace kv
