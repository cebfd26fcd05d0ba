#include "policies/parts/marked_sequences.h"

#include <algorithm>

namespace kv {

void MarkedSequences::begin(const BatchShape& shape, bool marked) {
  layers_.clear();
  for (int layer = 0; layer < shape.source->layers; ++layer) {
    Layer& made = layers_.emplace_back();
    made.marks.assign(static_cast<size_t>(shape.sequences), marked ? 1 : 0);
    made.on_device = Tensor(*shape.backend, DType::kU8, shape.sequences);
    upload(layer);
  }
}

bool MarkedSequences::any(int layer) const {
  return std::ranges::any_of(at(layer).marks, [](uint8_t mark) { return mark != 0; });
}

bool MarkedSequences::any() const {
  for (int layer = 0; layer < std::ssize(layers_); ++layer) {
    if (any(layer)) return true;
  }
  return false;
}

void MarkedSequences::upload(int layer) {
  Layer& changed = layers_[static_cast<size_t>(layer)];
  changed.on_device.upload(changed.marks.data(), changed.marks.size());
}

}  // namespace kv
