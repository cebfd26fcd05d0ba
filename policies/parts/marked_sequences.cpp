#include "policies/parts/marked_sequences.h"

#include <algorithm>

namespace kv {

void MarkedSequences::begin(const BatchShape& shape, bool marked) {
  layers_.clear();
  for (int layer = 0; layer < shape.source->layers; ++layer) {
    Layer& made = layers_.emplace_back();
    for (int s = 0; s < shape.sequences; ++s) made.segments.push_back({.sequence = s, .count = marked ? 1 : 0});
    made.on_device =
        Tensor(*shape.backend, DType::kI32, std::ssize(made.segments) * (sizeof(Segment) / sizeof(int32_t)));
    upload(layer);
  }
}

bool MarkedSequences::any(int layer) const {
  return std::ranges::any_of(at(layer).segments, [](const Segment& segment) { return segment.count != 0; });
}

bool MarkedSequences::any() const {
  for (int layer = 0; layer < std::ssize(layers_); ++layer) {
    if (any(layer)) return true;
  }
  return false;
}

void MarkedSequences::upload(int layer) {
  Layer& changed = layers_[static_cast<size_t>(layer)];
  changed.on_device.upload(changed.segments.data(), changed.segments.size() * sizeof(Segment));
}

}  // namespace kv
