// LagKV: entries whose channels spread widely within the range of the entries that follow stay; no attention is read.
// Paper: Liang et al., "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important" (2025);
// kernels/lag_relative.h has the formula. As kvpress' LagKVPress: entries are ranked within partitions of `lag`, so
// each partition keeps alike; `cross: yes` compares their softmax shares over partitions instead (kvpress:
// cross_scoring). Protects nothing, but the sinks, the last whole partition and what follows it score above all others;
// with fewer than sinks + 2 · lag entries the newest stay. Ties: equal ranks of different partitions are common; newer
// positions stay (torch.topk's order is not stated). Deviation: at decode-time events all that is resident is scored
// anew, as if it were a prompt; the paper compresses each partition once, when the next one is full.

#include <fmt/format.h>

#include "kernels/lag_relative.h"
#include "policies/parts/options.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class LagKV final : public Scorer {
 public:
  explicit LagKV(Params& params)
      : sinks_(option_at_least(params, 0, "sinks", 4, "first entries, which score above all others")),
        lag_(option_at_least(params, 1, "lag", 128, "entries of a partition, which the next one judges")),
        scale_(params.get("cross", "no", {"no", "yes"}, "yes: entries of different partitions compete") == "yes"
                   ? LagRelativeArgs::Scale::kShare
                   : LagRelativeArgs::Scale::kRank) {
    if (lag_ > kLargestLag) params.fail("lag", fmt::format("expected at most {}", kLargestLag));
  }

  Protection protects(int, int) const override { return {}; }

  void score(const LayerView& view, const ScoreOutput& out) override {
    view.backend.lag_relative({.cache = view.cache,
                               .sinks = sinks_,
                               .lag = lag_,
                               .scale = scale_,
                               .rows_due = out.rows_due,
                               .scores = out.scores});
  }

 private:
  int sinks_;
  int lag_;
  LagRelativeArgs::Scale scale_;
};

const RegisterPolicy registered{{
    .name = "lagkv",
    .summary = "keys and values that leave the range of those after them stay (Liang et al. 2025; kvpress LagKVPress)",
    .make = [](Params& params) { return std::make_unique<LagKV>(params); },
}};

}  // namespace

}  // namespace kv
