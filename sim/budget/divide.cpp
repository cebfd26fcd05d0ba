#include "sim/budget/divide.h"

#include <algorithm>
#include <vector>

#include "kernels/check.h"
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
  apportion(args.total(sequence), weights, rooms, sequence_counts);
  for (size_t layer = 0; layer < args.layers.size(); ++layer) {
    std::copy_n(sequence_counts.data() + layer * heads, heads, counts.data() + layer * rows + first);
  }
}

void fill_up(const AllocateArgs& args, int sequence, std::span<int32_t> counts) {
  const auto rows = static_cast<size_t>(args.rows());
  const auto for_each_head = [&](const auto& visit) {
    for (size_t layer = 0; layer < args.layers.size(); ++layer) {
      for (int head = 0; head < args.kv_heads; ++head) {
        const auto row = static_cast<size_t>(sequence * args.kv_heads + head);
        visit(counts[layer * rows + row], args.layers[layer].lengths[row]);
      }
    }
  };
  int64_t lacking = args.total(sequence);
  for_each_head([&](int32_t count, int32_t) { lacking -= count; });
  KV_CHECK(lacking >= 0);
  while (lacking > 0) {
    const int64_t before = lacking;
    for_each_head([&](int32_t& count, int32_t length) {
      if (lacking == 0 || count >= length) return;
      ++count;
      --lacking;
    });
    if (lacking == before) return;  // all that is there
  }
}

}  // namespace kv
