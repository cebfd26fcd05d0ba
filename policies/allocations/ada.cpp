// Ada-KV: heads compete for a common budget with their scores; a safeguard leaves each its own best.
// Paper: Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM Inference"
// (2024); as kvpress computes it: of κ entries a head, each keeps its own best int(0.2 κ); the
// highest scores of the layer fill κ · heads. Option `scope: model` lets the heads of all layers compete, which the
// paper does not: scores of different layers must then be comparable.
// Deviations: kvpress masks what is evicted and frees nothing; here it is gone. Protected entries count as a head's
// own, before its best. Equal scores: newer position, then lower head, then lower layer (kernels/select_pooled.h).

#include <fmt/format.h>

#include "kernels/error.h"
#include "kernels/select_pooled.h"
#include "policies/parts/options.h"
#include "sim/policy/allocation.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class Ada final : public Allocation {
 public:
  explicit Ada(Params& params)
      : safeguard_(fraction_option(params, "safeguard", 0.2, "share of the mean budget that each head keeps anyway")),
        whole_model_(params.get("scope", "layer", {"layer", "model"},
                                "whose heads compete: those of a layer (as published) or all") == "model") {}

  bool keeps_protected() const override { return true; }
  int64_t most_kept(int64_t kept, int layers, int kv_heads) const override {
    return kept * kv_heads * (whole_model_ ? layers : 1);
  }

  void allocate(const AllocateArgs& args, std::span<int32_t> counts) override {
    if (args.protection.sinks + args.protection.recent > args.kept) {
      throw UserError(fmt::format("ada: a budget of {} entries a head is less than the {} protected ones", args.kept,
                                  args.protection.sinks + args.protection.recent));
    }
    const auto rows = static_cast<size_t>(args.rows());
    const std::vector<int32_t> least(rows, static_cast<int32_t>(safeguard_ * args.kept));
    least_.reserve(args.backend, DType::kI32, args.rows());
    least_.upload(least.data(), least.size() * sizeof(int32_t));
    kept_.reserve(args.backend, DType::kI32, std::ssize(counts));
    std::vector<SelectPooledArgs::Layer> layers;
    for (size_t layer = 0; layer < args.layers.size(); ++layer) layers.push_back(pooled_layer(args, layer));
    if (whole_model_) {
      select(args, layers);
    } else {
      for (const SelectPooledArgs::Layer& layer : layers) select(args, std::span(&layer, 1));
    }
    read(args, counts);
  }

 private:
  SelectPooledArgs::Layer pooled_layer(const AllocateArgs& args, size_t layer) {
    const ScoredLayer& scored = args.layers[layer];
    if (keep_.size() <= layer) keep_.resize(layer + 1);
    return {.cache = scored.cache,
            .scores = scored.scores,
            .ties = scored.ties,
            .least = least_.ref().as<int32_t>(),
            .keep = keep_[layer].reserve_slots<uint8_t>(args.backend, args.rows(), scored.scores.pitch),
            .kept = kept_.ref().as<int32_t>() + static_cast<int64_t>(layer) * args.rows()};
  }

  // Every due sequence keeps `kept` entries a head; the others' counts are never read.
  void select(const AllocateArgs& args, std::span<const SelectPooledArgs::Layer> layers) {
    const auto total = static_cast<int32_t>(args.kept * args.kv_heads * std::ssize(layers));
    const std::vector<int32_t> totals(static_cast<size_t>(args.sequences), total);
    totals_.reserve(args.backend, DType::kI32, args.sequences);
    totals_.upload(totals.data(), totals.size() * sizeof(int32_t));
    args.backend.select_pooled({.layers = layers.data(),
                                .layer_count = std::ssize(layers),
                                .counts = totals_.ref().as<int32_t>(),
                                .sinks = args.protection.sinks,
                                .recent = args.protection.recent,
                                .rows_due = args.rows_due});
  }

  void read(const AllocateArgs& args, std::span<int32_t> counts) {
    std::vector<int32_t> kept(counts.size());
    kept_.download(kept.data(), kept.size() * sizeof(int32_t));
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto sequence = static_cast<int>(i % static_cast<size_t>(args.rows())) / args.kv_heads;
      if (args.is_due(sequence)) counts[i] = kept[i];
    }
  }

  double safeguard_;
  bool whole_model_;
  Tensor least_, totals_, kept_;  // [rows], [sequences], [layers, rows]
  std::vector<Tensor> keep_;      // [layers] of [rows, pitch]: the sets, which the counts stand for
};

const RegisterAllocation registered{{
    .name = "ada",
    .summary = "heads of a layer compete with their scores, with a safeguard each (Ada-KV, Feng et al. 2024)",
    .make = [](Params& params) { return std::make_unique<Ada>(params); },
}};

}  // namespace

}  // namespace kv
