#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/token_heads.h"

namespace kv::cuda {

// Places of a packed block, a tile of them a thread block, none across sequences: so that sums over tiles have an
// order.
class TokenTiles {
 public:
  static constexpr int kThreads = 256;

  explicit TokenTiles(const TokenHeads& shape)
      : shape_(shape), tiles_a_segment_(ceil_div(shape.max_count * shape.heads, kPlaces)) {}

  int64_t count() const { return shape_.layers * shape_.segment_count * tiles_a_segment_; }

  // Runs visit(place, segment, token of the segment) for this thread's places of the block's tile.
  template <class Visit>
  __device__ void for_places(const Visit& visit) const {
    const RowTile at = row_tile(tiles_a_segment_, kPlaces);  // row: layer and segment
    const Segment segment = shape_.segments[at.row % shape_.segment_count];
    const int64_t place = shape_.place(at.row / shape_.segment_count, segment, 0);
    const int64_t end = min(at.first + kPlaces, int64_t{segment.count} * shape_.heads);
    for (int64_t i = at.first + threadIdx.x; i < end; i += kThreads) visit(place + i, segment, i / shape_.heads);
  }

 private:
  static constexpr int kPlaces = 4 * kThreads;
  TokenHeads shape_;
  int64_t tiles_a_segment_;
};

}  // namespace kv::cuda
