#pragma once

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/token_heads.h"

namespace kv::cpu {

// A run of tokens of one layer and sequence: what a task takes, so that sums over tiles have an order.
struct TokenTile {
  int64_t layer = 0;
  Segment segment;
  int64_t first = 0, end = 0;  // tokens of the segment
};

class TokenTiles {
 public:
  explicit TokenTiles(const TokenHeads& shape)
      : shape_(shape), tiles_a_segment_((shape.max_count + kTokens - 1) / kTokens) {}

  int64_t count() const { return shape_.layers * shape_.segment_count * tiles_a_segment_; }

  TokenTile operator[](int64_t index) const {
    const int64_t row = index / tiles_a_segment_;
    const Segment segment = shape_.segments[row % shape_.segment_count];
    const int64_t first = std::min<int64_t>(index % tiles_a_segment_ * kTokens, segment.count);
    return {row / shape_.segment_count, segment, first, std::min<int64_t>(first + kTokens, segment.count)};
  }

  // Runs visit(tile, its index) for each, in parallel.
  template <class Visit>
  void for_each(const Visit& visit) const {
    parallel_for(count(), [&](int64_t index) { visit((*this)[index], index); });
  }

 private:
  static constexpr int64_t kTokens = 512;
  const TokenHeads& shape_;
  int64_t tiles_a_segment_;
};

}  // namespace kv::cpu
