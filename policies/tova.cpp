// TOVA: keep what the newest query attends to; one kept set a layer.
// Paper: Oren et al., "Transformers are Multi-State RNNs" (EMNLP 2024); policies.md 2.13.
//   s_j = mean over all query heads of the layer of A_{newest, j};  the newest entry is protected (kvpress).
// Deviation: prunes at the schedule's events; the paper's eviction at every token is interval 1.

#include <fmt/format.h>

#include <vector>

#include "kernels/error.h"
#include "kernels/pool.h"
#include "policies/parts/window_score.h"
#include "sim/policy.h"

namespace kv {

namespace {

class Tova final : public Scorer {
 public:
  PolicyNeeds needs() const override { return {.window_queries = 1}; }
  Protection protects(int, int) const override { return {.recent = 1}; }

  void check(int kept, int) const override {
    if (kept < 1) throw UserError(fmt::format("tova: budget {} must be at least 1", kept));
  }

  void begin(const BatchShape& shape) override { lengths_ = Tensor(*shape.backend, DType::i32, shape.sequences); }

  void score(const LayerView& view, const ScoreOutput& out) override {
    attention_.reserve(view.backend, DType::f32, view.rows() * view.group() * out.pitch);
    mean_.reserve(view.backend, DType::f32, view.sequences * out.pitch);
    float* attention = attention_.ref().as<float>();
    window_score(view, out, WindowAttentionArgs::Mode::per_query_head, attention);
    upload_lengths(view);
    // [rows, group] of a sequence are all query heads of the layer.
    view.backend.group_mean({.input = attention,
                             .output = mean_.ref().as<float>(),
                             .lengths = lengths_.ref().as<int32_t>(),
                             .rows = view.sequences,
                             .group = view.q_heads,
                             .pitch = out.pitch});
    hand_to_heads(view, out);
  }

 private:
  // Equal sets for all heads of a layer mean equal lengths.
  void upload_lengths(const LayerView& view) {
    std::vector<int32_t> lengths(static_cast<size_t>(view.sequences));
    for (int row = 0; row < view.rows(); ++row) {
      const int32_t length = view.lengths[static_cast<size_t>(row)];
      int32_t& own = lengths[static_cast<size_t>(row / view.kv_heads)];
      KV_CHECK(row % view.kv_heads == 0 || own == length);
      own = length;
    }
    lengths_.upload(lengths.data(), lengths.size() * sizeof(int32_t));
  }

  void hand_to_heads(const LayerView& view, const ScoreOutput& out) {
    for (int row = 0; row < view.rows(); ++row) {
      const int sequence = row / view.kv_heads;
      if (!out.sequences_due[static_cast<size_t>(sequence)]) continue;
      view.backend.copy(out.scores + row * out.pitch, mean_.at(sequence * out.pitch).data,
                        static_cast<size_t>(view.lengths[static_cast<size_t>(row)]) * sizeof(float));
    }
  }

  Tensor lengths_;    // [sequences]
  Tensor attention_;  // [sequences, q_heads, pitch]
  Tensor mean_;       // [sequences, pitch]
};

const RegisterPolicy registered{{
    .name = "tova",
    .summary = "attention of the newest query, one set a layer (Oren et al. 2024)",
    .make = [](Params&) { return std::make_unique<Tova>(); },
}};

}  // namespace

}  // namespace kv
