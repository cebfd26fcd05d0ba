#pragma once

#include <vector>

#include "kernels/tensor.h"
#include "sim/budget/oracle_importance.h"
#include "sim/policy/observer.h"
#include "sim/replay/loop.h"
#include "sim/source/model_source.h"
#include "sim/tasks/exam.h"

namespace kv {

// ‖v_j W_O^(h)‖₂ of every token that passes, on the host. One sequence.
class ContextNorms final : public Observer {
 public:
  explicit ContextNorms(const ModelSource& source);

  void attended(const LayerView& view, ConstRef) override;
  const std::vector<float>& layer(int layer) const { return layers_[static_cast<size_t>(layer)]; }  // [tokens, q_heads]

 private:
  const ModelSource& source_;
  std::vector<std::vector<float>> layers_;
  Tensor scratch_;
};

// Ĩ [layers · kv_heads][context] of the context's entries for one answer: the largest attention that the queries which
// predict the answer's tokens pay to an entry, times its norm, shared by the query heads of a KV head and normalised as
// `options` says, which has no block or future here (sim/budget/oracle_importance.h). `state` is the full cache after
// the context; the question, its answer's prefix and what is expected of it go on from there. Those queries are the
// prefix and all of the answer but its last token. UserError: nothing is expected. Deviation: the answer is the
// expected one, where 002 lets the model decode (up to Kmax tokens).
std::vector<std::vector<float>> answer_importance(Backend& backend, ModelSource& source, const Exam& exam,
                                                  const ExamQuestion& question, const ContextNorms& norms,
                                                  const ImportanceOptions& options, LoopState state);

}  // namespace kv
