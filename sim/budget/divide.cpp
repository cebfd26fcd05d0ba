#include "sim/budget/divide.h"

#include <algorithm>
#include <vector>

#include "sim/budget/apportion.h"

namespace kv {

void divide(const AllocateArgs& args, int sequence, std::span<const double> weights, std::span<int32_t> counts) {
  const auto heads = static_cast<size_t>(args.kv_heads), rows = static_cast<size_t>(args.rows());
  const size_t first = static_cast<size_t>(sequence) * heads;
  std::vector<int32_t> rooms, sequence_counts(weights.size());
  for (const ScoredLayer& layer : args.layers) {
    const auto lengths = layer.lengths.subspan(first, heads);
    rooms.insert(rooms.end(), lengths.begin(), lengths.end());
  }
  apportion(args.total(), weights, rooms, sequence_counts);
  for (size_t layer = 0; layer < args.layers.size(); ++layer) {
    std::copy_n(sequence_counts.data() + layer * heads, heads, counts.data() + layer * rows + first);
  }
}

}  // namespace kv
