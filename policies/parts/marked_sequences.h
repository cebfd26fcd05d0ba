#pragma once

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"
#include "sim/policy/slot.h"

namespace kv {

// Which sequences of a batch are marked, layer by layer, as ops take it. The memory stays where it is, so that what was
// recorded sees the marks of its time.
class MarkedSequences {
 public:
  void begin(const BatchShape& shape, bool marked);
  bool is_marked(int layer, int sequence) const { return at(layer).marks[static_cast<size_t>(sequence)] != 0; }
  bool any(int layer) const;
  bool any() const;
  // Seen by ops after upload().
  void mark(int layer, int sequence, bool marked) {
    layers_[static_cast<size_t>(layer)].marks[static_cast<size_t>(sequence)] = marked ? 1 : 0;
  }
  void upload(int layer);
  const uint8_t* on_device(int layer) const { return at(layer).on_device.ref().as<uint8_t>(); }  // [sequences]

 private:
  struct Layer {
    std::vector<uint8_t> marks;
    Tensor on_device;
  };
  const Layer& at(int layer) const { return layers_[static_cast<size_t>(layer)]; }

  std::vector<Layer> layers_;
};

}  // namespace kv
