#include "harness/metrics/residents.h"

#include "kernels/check.h"

namespace kv {

void Residents::begin(const BatchShape& shape) {
  const SourceInfo& source = *shape.source;
  rows_ = shape.sequences * source.kv_heads;
  positions_.assign(static_cast<size_t>(source.layers) * static_cast<size_t>(rows_), {});
}

void Residents::append(const LayerView& view) {
  for (const Segment& segment : view.segments) {
    for (int head = 0; head < view.kv_heads; ++head) {
      auto& positions = at(view.layer, segment.sequence * view.kv_heads + head);
      for (int32_t i = 0; i < segment.count; ++i) positions.push_back(segment.first_position + i);
    }
  }
}

void Residents::cut(const EvictionView& view, std::span<const uint8_t> keep) {
  const int kv_heads = view.layer.kv_heads;
  for (int row = 0; row < rows_; ++row) {
    if (!view.sequences_due[static_cast<size_t>(row / kv_heads)]) continue;
    std::vector<int32_t>& positions = at(view.layer.layer, row);
    leave(positions, keep.subspan(static_cast<size_t>(row * view.keep.pitch), positions.size()));
    KV_CHECK(positions.size() == static_cast<size_t>(view.kept[static_cast<size_t>(row)]));
  }
}

void Residents::sweep(const LayerView& view, Slots<const uint8_t> keep) {
  const std::vector<uint8_t> flags = to_host(view.backend, keep.data, keep.elements());
  for (int row = 0; row < rows_; ++row) {
    std::vector<int32_t>& positions = at(view.layer, row);
    leave(positions, std::span(flags).subspan(static_cast<size_t>(row * keep.pitch), positions.size()));
  }
}

void Residents::leave(std::vector<int32_t>& positions, std::span<const uint8_t> flags) {
  size_t kept = 0;
  for (size_t slot = 0; slot < positions.size(); ++slot) {
    if (flags[slot]) positions[kept++] = positions[slot];
  }
  positions.resize(kept);
}

std::span<const int32_t> Residents::row(int layer, int row) const {
  return positions_[static_cast<size_t>(layer) * static_cast<size_t>(rows_) + static_cast<size_t>(row)];
}

std::vector<int32_t>& Residents::at(int layer, int row) {
  return positions_[static_cast<size_t>(layer) * static_cast<size_t>(rows_) + static_cast<size_t>(row)];
}

}  // namespace kv
