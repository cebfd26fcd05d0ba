#include "sim/replay/evicted_overlap.h"

#include <cstdint>

#include "kernels/select_top.h"

namespace kv {

std::vector<std::optional<double>> EvictedOverlap::of(const EvictionView& view, const ScoredLayer& onlooker) {
  const LayerView& layer = view.layer;
  std::vector<uint8_t> due;
  for (const uint8_t of_sequence : view.sequences_due)
    due.insert(due.end(), static_cast<size_t>(layer.kv_heads), of_sequence);
  due_.reserve(layer.backend, DType::kU8, layer.rows());
  due_.upload(due.data(), due.size());
  counts_.reserve(layer.backend, DType::kI32, layer.rows());
  counts_.upload(view.kept.data(), view.kept.size_bytes());
  const Slots<uint8_t> keep = keep_.reserve_slots<uint8_t>(layer.backend, layer.rows(), layer.pitch);
  layer.backend.select_top({.cache = layer.cache,
                            .scores = onlooker.scores,
                            .ties = onlooker.ties,
                            .counts = counts_.ref().as<int32_t>(),
                            .sinks = view.protection.sinks,
                            .recent = view.protection.recent,
                            .rows_due = due_.ref().as<uint8_t>(),
                            .keep = keep});
  std::vector<uint8_t> theirs(keep.bytes()), kept(keep.bytes());
  layer.backend.download(theirs.data(), keep.data, theirs.size());
  layer.backend.download(kept.data(), view.keep.data, kept.size());
  std::vector<std::optional<double>> shares(due.size());
  for (size_t row = 0; row < due.size(); ++row) {
    if (!due[row]) continue;
    int64_t evicted = 0, both = 0;
    for (int64_t slot = 0; slot < layer.lengths[row]; ++slot) {
      const size_t at = row * static_cast<size_t>(layer.pitch) + static_cast<size_t>(slot);
      evicted += kept[at] == 0;
      both += kept[at] == 0 && theirs[at] == 0;
    }
    if (evicted > 0) shares[row] = static_cast<double>(both) / static_cast<double>(evicted);
  }
  return shares;
}

}  // namespace kv
