#pragma once

#include <vector>

#include "kernels/paged.h"
#include "kernels/tensor.h"
#include "sim/policy/slot.h"

namespace kv {

// Which sequences of a batch are marked, layer by layer, as ops take it: a segment a sequence, with or without a token.
// The memory stays where it is, so that what was recorded sees the marks of its time.
class MarkedSequences {
 public:
  void begin(const BatchShape& shape, bool marked);
  bool is_marked(int layer, int sequence) const { return at(layer).segments[static_cast<size_t>(sequence)].count != 0; }
  bool any(int layer) const;
  bool any() const;
  // Seen by ops after upload().
  void mark(int layer, int sequence, bool marked) {
    layers_[static_cast<size_t>(layer)].segments[static_cast<size_t>(sequence)].count = marked ? 1 : 0;
  }
  void upload(int layer);
  const Segment* segments(int layer) const { return static_cast<const Segment*>(at(layer).on_device.ref().data); }

 private:
  struct Layer {
    std::vector<Segment> segments;
    Tensor on_device;
  };
  const Layer& at(int layer) const { return layers_[static_cast<size_t>(layer)]; }

  std::vector<Layer> layers_;
};

}  // namespace kv
