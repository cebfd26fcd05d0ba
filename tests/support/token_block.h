#pragma once

#include <algorithm>
#include <vector>

#include "kernels/token_heads.h"
#include "tests/support/slices.h"

namespace kv::ref {

// Whole sequences in a packed block, of which `layers` layers have `heads` numbers a token.
struct TokenBlock {
  std::vector<Segment> segments;
  int64_t layers = 1;
  int64_t tokens = 0;
  int heads = 1;

  int64_t elements() const { return layers * tokens * heads; }

  // Runs visit(place, segment, token of the segment) for all places of sequences.
  template <class Visit>
  void for_places(const Visit& visit) const {
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (const Segment& segment : segments) {
        for (int64_t i = 0; i < int64_t{segment.count} * heads; ++i) {
          visit(static_cast<size_t>((layer * tokens + segment.first_token) * heads + i), segment, i / heads);
        }
      }
    }
  }
};

// The block as ops see it, while this lives.
class UploadedBlock {
 public:
  UploadedBlock(Backend& backend, const TokenBlock& block) : segments_(upload_segments(backend, block.segments)) {
    shape_ = {.segments = segments_of(segments_),
              .segment_count = std::ssize(block.segments),
              .layers = block.layers,
              .tokens = block.tokens,
              .heads = block.heads};
    for (const Segment& segment : block.segments) {
      shape_.max_count = std::max<int64_t>(shape_.max_count, segment.count);
    }
  }
  const TokenHeads& shape() const { return shape_; }

 private:
  Tensor segments_;
  TokenHeads shape_;
};

// Blocks around the sizes of tiles, in any order.
inline std::vector<TokenBlock> token_blocks() {
  return {{.heads = 2},
          {.segments = {{.count = 1}}, .tokens = 1},
          {.segments = {{.first_token = 7, .count = 5}, {.count = 7}, {.first_token = 12}}, .tokens = 12, .heads = 3},
          {.segments = {{.first_token = 514, .count = 511}, {.count = 513}, {.first_token = 513, .count = 1}},
           .layers = 2,
           .tokens = 1025,
           .heads = 2},
          {.segments = {{.first_token = 1, .count = 1024}, {.count = 1}}, .layers = 3, .tokens = 1025}};
}

}  // namespace kv::ref
