#pragma once

#include <optional>
#include <vector>

#include "kernels/tensor.h"
#include "sim/policy/observer.h"

namespace kv {

// How far an onlooker agrees with who cuts: of the entries that a row loses at an event, the share that the onlooker's
// scores would evict, too, keeping as many and protecting the same (001 calls it the overlap with Golden).
class EvictedOverlap {
 public:
  // [rows] of the layer that is being cut; none of a row that is not due or loses nothing.
  std::vector<std::optional<double>> of(const EvictionView& view, const ScoredLayer& onlooker);

 private:
  Tensor due_, counts_;  // [rows]
  Tensor keep_;          // [rows, pitch]
};

}  // namespace kv
