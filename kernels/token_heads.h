#pragma once

#include <cstdint>

#include "kernels/paged.h"

namespace kv {

// A number for every layer, token and head of a packed block of whole sequences, [layers, tokens, heads]: what gates
// say and what losses of gates are taken over. A segment is a sequence from its first token on, and no two share a
// token: token i of one is its i-th, whatever position it stands at.
struct TokenHeads {
  const Segment* segments = nullptr;  // [segment_count]
  int64_t segment_count = 0;
  int64_t max_count = 0;  // largest count, known on the host
  int64_t layers = 1;
  int64_t tokens = 0;  // of all segments together
  int heads = 0;       // of a layer

  constexpr int64_t elements() const { return layers * tokens * heads; }
  // Where the numbers of token i of a segment begin, one a head.
  constexpr int64_t place(int64_t layer, const Segment& segment, int64_t i) const {
    return (layer * tokens + segment.first_token + i) * heads;
  }
};

}  // namespace kv
