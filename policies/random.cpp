// Random eviction: uniform scores, the floor that every policy has to beat. Protects nothing unless asked.
// Source: kvpress RandomPress (policies.md 2.14).
// Scores are a pure function of (seed, sample number, layer, KV head, tokens seen, slot): neither batching nor the
// number of threads changes them, and every event draws anew.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "kernels/error.h"
#include "policies/parts/options.h"
#include "sim/policy.h"
#include "sim/random.h"

namespace kv {

namespace {

class RandomScorer final : public Scorer {
 public:
  explicit RandomScorer(Params& params)
      : sinks_(option_at_least(params, 0, "sinks", 0, "first tokens of the sequence that always stay")),
        recent_(option_at_least(params, 0, "recent", 0, "newest entries that always stay")) {}

  Protection protects(int, int) const override { return {.sinks = sinks_, .recent = recent_}; }

  void check(int kept, int) const override {
    const int64_t protect = int64_t{sinks_} + recent_;
    if (kept < protect) {
      throw UserError(fmt::format("random: budget {} is less than the {} protected entries", kept, protect));
    }
  }

  void begin(const BatchShape& shape) override {
    seed_ = shape.seed;
    sample_numbers_.assign(shape.sample_numbers.begin(), shape.sample_numbers.end());
    layer_numbers_ = shape.source->layer_numbers;
  }

  void score(const LayerView& view, const ScoreOutput& out) override {
    scores_.assign(static_cast<size_t>(view.rows() * out.pitch), 0.0f);
    for (int row = 0; row < view.rows(); ++row) score_row(view, out, row);
    view.backend.upload(out.scores, scores_.data(), scores_.size() * sizeof(float));
  }

 private:
  void score_row(const LayerView& view, const ScoreOutput& out, int row) {
    const size_t sequence = static_cast<size_t>(row / view.kv_heads);
    const auto sample = static_cast<uint32_t>(sample_numbers_[sequence]);
    const auto layer = static_cast<uint32_t>(layer_numbers_[static_cast<size_t>(view.layer)]);
    const uint32_t head = layer << 16 | static_cast<uint32_t>(row % view.kv_heads);
    const auto event = static_cast<uint32_t>(out.tokens_seen[sequence]);
    float* scores = scores_.data() + row * out.pitch;
    for (int32_t slot = 0; slot < view.lengths[static_cast<size_t>(row)]; ++slot) {
      scores[slot] = hash_uniform(seed_, sample, head, event, static_cast<uint32_t>(slot));
    }
  }

  int sinks_;
  int recent_;
  uint64_t seed_ = 0;
  std::vector<int32_t> sample_numbers_;
  std::vector<int> layer_numbers_;
  std::vector<float> scores_;  // [rows, pitch]
};

const RegisterPolicy registered{{
    .name = "random",
    .summary = "seeded random eviction, the floor (kvpress RandomPress)",
    .make = [](Params& params) { return std::make_unique<RandomScorer>(params); },
}};

}  // namespace

}  // namespace kv
