#include "sim/cache/block.h"

#include <algorithm>

namespace kv {

Block make_block(Backend& backend, std::span<const int32_t> first_positions, std::span<const int32_t> counts) {
  KV_CHECK(first_positions.size() == counts.size());
  Block block;
  std::vector<int32_t> positions;
  for (size_t s = 0; s < counts.size(); ++s) {
    block.segments.push_back({.sequence = static_cast<int32_t>(s),
                              .first_token = static_cast<int32_t>(block.tokens),
                              .count = counts[s],
                              .first_position = first_positions[s]});
    for (int32_t i = 0; i < counts[s]; ++i) positions.push_back(first_positions[s] + i);
    block.tokens += counts[s];
    block.max_count = std::max<int64_t>(block.max_count, counts[s]);
  }
  static_assert(sizeof(Segment) == 4 * sizeof(int32_t));
  block.device_segments = Tensor(backend, DType::kI32, static_cast<int64_t>(block.segments.size()) * 4);
  block.device_segments.upload(block.segments.data(), block.segments.size() * sizeof(Segment));
  block.device_positions = Tensor(backend, DType::kI32, block.tokens);
  block.device_positions.upload(positions.data(), positions.size() * sizeof(int32_t));
  return block;
}

}  // namespace kv
