#include "policies/parts/pooled_counts.h"

#include <fmt/format.h>

#include "kernels/error.h"

namespace kv {

void PooledCounts::count(const AllocateArgs& args, Scope scope, int kept, int least, std::string_view owner,
                         std::span<int32_t> counts) {
  const int own = args.protection.sinks + args.protection.recent;
  if (own > kept) {
    throw UserError(
        fmt::format("{}: a budget of {} entries a head is less than the {} protected ones", owner, kept, own));
  }
  const std::vector<int32_t> least_of_rows(static_cast<size_t>(args.rows()), least);
  least_.reserve(args.backend, DType::kI32, args.rows());
  least_.upload(least_of_rows.data(), least_of_rows.size() * sizeof(int32_t));
  kept_.reserve(args.backend, DType::kI32, std::ssize(counts));
  std::vector<SelectPooledArgs::Layer> layers;
  for (size_t layer = 0; layer < args.layers.size(); ++layer) layers.push_back(pooled_layer(args, layer));
  if (scope == Scope::kModel) {
    select(args, kept, layers);
  } else {
    for (const SelectPooledArgs::Layer& layer : layers) select(args, kept, std::span(&layer, 1));
  }
  read(args, counts);
}

SelectPooledArgs::Layer PooledCounts::pooled_layer(const AllocateArgs& args, size_t layer) {
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
void PooledCounts::select(const AllocateArgs& args, int kept, std::span<const SelectPooledArgs::Layer> layers) {
  const auto total = static_cast<int32_t>(kept * args.kv_heads * std::ssize(layers));
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

void PooledCounts::read(const AllocateArgs& args, std::span<int32_t> counts) const {
  std::vector<int32_t> kept(counts.size());
  kept_.download(kept.data(), kept.size() * sizeof(int32_t));
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto sequence = static_cast<int>(i % static_cast<size_t>(args.rows())) / args.kv_heads;
    if (args.is_due(sequence)) counts[i] = kept[i];
  }
}

}  // namespace kv
