// Golden Eviction: the oracle that keeps what the full cache's future queries will attend to.
// Paper: 001 (ForesightKV), Eqs. 3-5.
//   ã_j,t = (1/L) Σ_{i in block t} (1/g) Σ_{h in group} A_ij^(h)  of the full-cache pass, block t = L queries;
//   α_j = max over the blocks after the event of ã_j,t;  keep the largest α and the newest L, no sinks.
// The last block of a sequence is padded with zero queries: still divided by L (as in the released code).
// Ties (often exact zeros): newer positions stay.
// Options: queries=max replaces the mean over a block's queries with their maximum, a query head at a time, before the
// mean over the group; group=max takes the largest of the group's heads then (with queries=mean it is not offered: the
// full pass sums over the group); horizon looks only at that many blocks.
// Deviations: attention in f32 where the code stores bf16. A budget that is no multiple of L is refused (the code would
// let α see queries from before the event).

#include <fmt/format.h>

#include <vector>

#include "kernels/error.h"
#include "kernels/future_scores.h"
#include "policies/parts/options.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class Golden final : public Scorer {
 public:
  explicit Golden(Params& params)
      : queries_max_(params.get("queries", "mean", {"mean", "max"},
                                "how the attention of a block's queries is pooled before the best block counts") ==
                     "max"),
        group_max_(params.get("group", "mean", {"mean", "max"},
                              "how the query heads of a KV head are pooled; max needs queries: max") == "max"),
        horizon_(option_at_least(params, 0, "horizon", 0, "blocks of the future that count; 0: all of them")) {
    if (group_max_ && !queries_max_) throw UserError("golden: group = max: expected with queries: max only");
  }

  Needs needs() const override {
    return {.future = BaselineNeeds{.block_sums = !queries_max_, .block_max = queries_max_}};
  }
  Protection protects(int, int interval) const override { return {.recent = interval}; }

  bool takes_prompts() const override { return false; }
  void check_budget(int kept, int interval) const override {
    if (interval == 0) {
      throw UserError("golden: one-shot compression is not covered (expected decode-time pruning with an interval)");
    }
    if (kept % interval != 0) {
      throw UserError(fmt::format("golden: budget {} must be a multiple of the interval {}", kept, interval));
    }
    if (kept <= interval) throw UserError(fmt::format("golden: budget {} must exceed the interval {}", kept, interval));
  }

  void begin(const BatchShape& shape) override {
    const Baseline& baseline = *shape.future;
    const int block = baseline.has.statistics_block;
    interval_ = shape.interval;
    KV_CHECK(interval_ > 0 && block > 0 && interval_ % block == 0);
    merge_ = interval_ / block;
    statistics_blocks_ = baseline.blocks;
    tokens_ = baseline.max_tokens;
    blocks_ = (statistics_blocks_ + merge_ - 1) / merge_;
    rows_ = static_cast<int64_t>(shape.sequences) * shape.source->kv_heads;
    group_ = shape.source->group();
    from_block_ = Tensor(*shape.backend, DType::kI32, shape.sequences);
    tables_.clear();
    for (const BaselineLayer& layer : baseline.layers) {
      tables_.push_back(queries_max_ ? table_of_max(*shape.backend, layer) : table_of_mean(*shape.backend, layer));
    }
  }

  void score(const LayerView& view, const ScoreOutput& out) override {
    // Events come after whole intervals, so the first block not yet seen starts at the next token.
    std::vector<int32_t> from;
    for (const int32_t seen : out.tokens_seen) from.push_back(seen / interval_);
    from_block_.upload(from.data(), from.size() * sizeof(int32_t));
    view.backend.future_scores({.cache = view.cache,
                                .table = tables_[static_cast<size_t>(view.layer)].ref().as<float>(),
                                .from_block = from_block_.ref().as<int32_t>(),
                                .blocks = blocks_,
                                .tokens = tokens_,
                                .rows_due = out.rows_due,
                                .scores = out.scores});
  }

 private:
  Tensor table_of_mean(Backend& backend, const BaselineLayer& layer) const {
    Tensor table(backend, DType::kF32, rows_ * blocks_ * tokens_);
    backend.future_table({.combine = FutureTableArgs::Combine::kSum,
                          .input = layer.block_sums.ref().as<float>(),
                          .output = table.ref().as<float>(),
                          .heads = rows_,
                          .blocks = statistics_blocks_,
                          .tokens = tokens_,
                          .merge = merge_,
                          .horizon = horizon_,
                          .scale = 1.0f / static_cast<float>(interval_)});
    return table;
  }

  // Per query head: maximum over each block's queries; then over the group; only then the best later block.
  Tensor table_of_max(Backend& backend, const BaselineLayer& layer) const {
    Tensor per_head(backend, DType::kF32, rows_ * group_ * blocks_ * tokens_);
    backend.future_table({.combine = FutureTableArgs::Combine::kMax,
                          .input = layer.block_max.ref().as<float>(),
                          .output = per_head.ref().as<float>(),
                          .heads = rows_ * group_,
                          .blocks = statistics_blocks_,
                          .tokens = tokens_,
                          .merge = merge_,
                          .horizon = 1});
    // The group is the axis to merge: each head's blocks lie in a row.
    Tensor pooled(backend, DType::kF32, rows_ * blocks_ * tokens_);
    backend.future_table({.combine = group_max_ ? FutureTableArgs::Combine::kMax : FutureTableArgs::Combine::kSum,
                          .input = per_head.ref().as<float>(),
                          .output = pooled.ref().as<float>(),
                          .heads = rows_,
                          .blocks = group_,
                          .tokens = blocks_ * tokens_,
                          .merge = group_,
                          .scale = group_max_ ? 1.0f : 1.0f / static_cast<float>(group_)});
    Tensor table(backend, DType::kF32, rows_ * blocks_ * tokens_);
    backend.future_table({.combine = FutureTableArgs::Combine::kMax,
                          .input = pooled.ref().as<float>(),
                          .output = table.ref().as<float>(),
                          .heads = rows_,
                          .blocks = blocks_,
                          .tokens = tokens_,
                          .horizon = horizon_});
    return table;
  }

  bool queries_max_;
  bool group_max_;
  int horizon_;
  int interval_ = 0;
  int merge_ = 1;
  int64_t statistics_blocks_ = 0;
  int64_t blocks_ = 0;  // of `interval` queries
  int64_t tokens_ = 0;
  int64_t rows_ = 0;
  int group_ = 1;
  Tensor from_block_;           // [sequences]
  std::vector<Tensor> tables_;  // [layers] of [rows, blocks, tokens]
};

const RegisterPolicy registered{{
    .name = "golden",
    .summary = "oracle: keeps what the full cache's future queries attend to (001 Eqs. 3-5)",
    .make = [](Params& params) { return std::make_unique<Golden>(params); },
}};

}  // namespace

}  // namespace kv
