#pragma once

#include <cstdint>
#include <limits>

#include "kernels/paged.h"
#include "kernels/random_uniform.h"

namespace kv {

// PagedView::expires of an entry that no query outlives.
inline constexpr int32_t kNeverExpires = std::numeric_limits<int32_t>::max();

// Until when the entries of a packed block of new tokens are seen, each for itself: for token i of a segment, at
// position p = first_position + i, and KV head h of layer l
//   expires[l, first_token + i, h] = kNeverExpires where it is admitted, else p + window, which is kNeverExpires too
// where no position is as large.
// Admitted is a token with p < sinks, one of a head with heads_admitted[l, h] = 1, and one whose gate lies above the
// threshold. Where `drop` is above 0 gates are computed elsewhere for their cost alone, and a seeded draw decides in
// their place: admitted is what draws hash_uniform(seed, numbers[sequence], first_heads[l] + h, p) >= drop. Sinks and
// heads_admitted hold all the same. A NaN gate admits nothing. Depends on positions, not on how tokens lie in blocks.
struct ExpiryArgs {
  const Segment* segments = nullptr;  // [segment_count], at most one a sequence
  int64_t segment_count = 0;
  int64_t max_count = 0;  // largest count, known on the host
  int layers = 1;
  int64_t tokens = 0;  // of a layer's block; only for layers > 1
  int kv_heads = 0;
  int sinks = 0;
  int window = 0;                           // everybody sees an entry for so many tokens, its own among them; >= 1
  const uint8_t* heads_admitted = nullptr;  // [layers, kv_heads]; null: no head by itself
  const float* gates = nullptr;             // [layers, tokens, kv_heads]; null: none
  float threshold = 0;
  float drop = 0;  // share that the draw turns away
  uint64_t seed = 0;
  const int32_t* numbers = nullptr;      // [sequences], of their samples; only for drop > 0
  const int32_t* first_heads = nullptr;  // [layers], numbers of their first KV heads; only for drop > 0
  int32_t* expires = nullptr;            // [layers, tokens, kv_heads]

  constexpr int64_t place(const Segment& segment, int64_t layer, int64_t i, int64_t head) const {
    return (layer * tokens + segment.first_token + i) * kv_heads + head;
  }
};

// The decision for token i of a segment.
constexpr bool is_admitted(const ExpiryArgs& args, const Segment& segment, int64_t layer, int64_t i, int64_t head) {
  const int64_t position = segment.first_position + i;
  if (position < args.sinks) return true;
  if (args.heads_admitted && args.heads_admitted[layer * args.kv_heads + head]) return true;
  if (args.drop > 0) {
    const auto number = static_cast<uint32_t>(args.numbers[segment.sequence]);
    return hash_uniform(args.seed, number, static_cast<uint32_t>(args.first_heads[layer] + head),
                        static_cast<uint32_t>(position)) >= args.drop;
  }
  return args.gates && args.gates[args.place(segment, layer, i, head)] > args.threshold;
}

// What is written for it.
constexpr int32_t expiry_of(const ExpiryArgs& args, const Segment& segment, int64_t layer, int64_t i, int64_t head) {
  const int64_t turned_away = segment.first_position + i + args.window;
  return is_admitted(args, segment, layer, i, head) || turned_away > kNeverExpires ? kNeverExpires
                                                                                   : static_cast<int32_t>(turned_away);
}

namespace cpu {
void expiry(const ExpiryArgs& args);
}
namespace cuda {
void expiry(const ExpiryArgs& args);
}

}  // namespace kv
