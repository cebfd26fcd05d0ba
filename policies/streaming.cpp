// StreamingLLM: attention sinks and a sliding window. Keeps the first `sinks` tokens and the newest kept − sinks.
// Paper: Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (ICLR 2024).
// Deviation: keys keep their original rotation (as in kvpress and the evaluation code of R-KV); the paper re-rotates
// them to their place in the cache.

#include <fmt/format.h>

#include "kernels/error.h"
#include "policies/parts/options.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class Streaming final : public Scorer {
 public:
  explicit Streaming(Params& params)
      : sinks_(option_at_least(params, 0, "sinks", 4, "first tokens of the sequence that always stay")) {}

  Protection protects(int kept, int) const override { return {.sinks = sinks_, .recent = kept - sinks_}; }

  void check_budget(int kept, int) const override {
    if (kept <= sinks_) throw UserError(fmt::format("streaming: budget {} does not exceed the {} sinks", kept, sinks_));
  }

  // Protection alone fills the budget; equal scores say that the rest is worth nothing.
  void score(const LayerView& view, const ScoreOutput& out) override {
    view.backend.fill_zero(out.scores.data, out.scores.bytes());
  }

 private:
  int sinks_;
};

const RegisterPolicy registered{{
    .name = "streaming",
    .summary = "first tokens and a sliding window (StreamingLLM, Xiao et al. 2024)",
    .make = [](Params& params) { return std::make_unique<Streaming>(params); },
}};

}  // namespace

}  // namespace kv
