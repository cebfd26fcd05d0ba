#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/cache/to_host.h"
#include "sim/policy/observer.h"

namespace kv {

// Positions of the resident entries of every row, mirrored on the host: call `append` from Observer::attended, `cut` at
// the end of Observer::evicting, `sweep` from Observer::sweeping. Slots keep the order of positions, so the mirror
// needs the keep flags only and not the cache's pages.
class Residents {
 public:
  void begin(const BatchShape& shape);
  void append(const LayerView& view);
  void cut(const EvictionView& view, std::span<const uint8_t> keep /*[rows, pitch], host*/);
  void sweep(const LayerView& view, Slots<const uint8_t> keep);

  std::span<const int32_t> row(int layer, int row) const;

 private:
  std::vector<int32_t>& at(int layer, int row);
  // Leaves the positions whose flags are 1.
  static void leave(std::vector<int32_t>& positions, std::span<const uint8_t> flags);

  int rows_ = 0;
  std::vector<std::vector<int32_t>> positions_;  // [layers, rows]
};

}  // namespace kv
