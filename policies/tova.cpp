// TOVA: keep what the newest query attends to; one kept set a layer.
// Paper: Oren et al., "Transformers are Multi-State RNNs" (EMNLP 2024).
//   s_j = mean over all query heads of the layer of A_{newest, j};  the newest entry is protected (kvpress).
// An allocation may leave heads of a layer with different entries; A_{newest, j} is then 0 for those without entry j.
// Deviation: prunes at the schedule's events; the paper's eviction at every token is interval 1.

#include <fmt/format.h>

#include "kernels/error.h"
#include "kernels/layer_mean.h"
#include "policies/parts/window_score.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class Tova final : public Scorer {
 public:
  Needs needs() const override { return {.window_queries = 1}; }
  Protection protects(int, int) const override { return {.recent = 1}; }

  void check_budget(int kept, int) const override {
    if (kept < 1) throw UserError(fmt::format("tova: budget {} must be at least 1", kept));
  }

  void score(const LayerView& view, const ScoreOutput& out) override {
    const Slots<float> attention =
        attention_.reserve_slots<float>(view.backend, view.rows() * view.group(), out.scores.pitch);
    window_score(view, out, WindowAttentionArgs::Mode::kPerQueryHead, attention);
    view.backend.layer_mean({.cache = view.cache,
                             .input = attention,
                             .group = view.group(),
                             .rows_due = out.rows_due,
                             .output = out.scores});
  }

 private:
  Tensor attention_;  // [rows, group, pitch]
};

const RegisterPolicy registered{{
    .name = "tova",
    .summary = "attention of the newest query, one set a layer (Oren et al. 2024)",
    .make = [](Params&) { return std::make_unique<Tova>(); },
}};

}  // namespace

}  // namespace kv
