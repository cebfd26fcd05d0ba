// Random eviction: uniform scores, the floor that every policy has to beat. Protects nothing unless asked.
// Source: kvpress RandomPress.
// Scores are a pure function of (seed, sample number, layer, KV head, tokens seen, slot): neither batching nor the
// number of threads changes them, and every event draws anew.

#include <vector>

#include "kernels/random_uniform.h"
#include "policies/parts/protected_ends.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class RandomScorer final : public ProtectedEnds {
 public:
  explicit RandomScorer(Params& params) : ProtectedEnds(params) {}

  void begin(const BatchShape& shape) override {
    seed_ = shape.seed;
    numbers_ = Tensor(*shape.backend, DType::kI32, std::ssize(shape.sample_numbers));
    numbers_.upload(shape.sample_numbers.data(), shape.sample_numbers.size_bytes());
    layer_numbers_ = shape.source->layer_numbers;
  }

  void score(const LayerView& view, const ScoreOutput& out) override {
    const auto layer = static_cast<uint32_t>(layer_numbers_[static_cast<size_t>(view.layer)]);
    view.backend.random_uniform({.cache = view.cache,
                                 .seed = seed_,
                                 .numbers = numbers_.ref().as<int32_t>(),
                                 .tokens_seen = out.device_tokens_seen,
                                 .first_head = layer << 16,
                                 .rows_due = out.rows_due,
                                 .scores = out.scores});
  }

 private:
  uint64_t seed_ = 0;
  Tensor numbers_;  // [sequences], of their samples
  std::vector<int> layer_numbers_;
};

const RegisterPolicy registered{{
    .name = "random",
    .summary = "seeded random eviction, the floor (kvpress RandomPress)",
    .make = [](Params& params) { return std::make_unique<RandomScorer>(params); },
}};

}  // namespace

}  // namespace kv
