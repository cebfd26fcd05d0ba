#pragma once

#include <cstdint>

#include "kernels/token_heads.h"

namespace kv {

// What the excess at position t, from 0, is measured by, and over which places that is averaged; M entries a head.
enum class CapacityLaw : uint8_t {
  kOverfull,    // by max(1, t − M), over those that are overfull: TRIM-KV's code, and 003's
  kEverywhere,  // by t + 1, over all: TRIM-KV's paper, as others report it
};

// What soft occupancies (kernels/occupancy.h) exceed a capacity by, as a loss. With S summed over n = pooled heads, a
// place, of a token and head, is overfull where S > n · M, and costs there
//   c = (S − n M) / max(1, n (t − M))   or, kEverywhere,   c = (S − n M) / (n (t + 1))
//   loss = mean of c over those that the law says, 0 without any;  gradient = weight · ∂loss/∂S,  0 where S <= n · M
// A NaN counts as overfull, so it shows in the loss. Sums in double.
struct CapacityHingeArgs {
  TokenHeads shape;  // of the occupancy; its segments hold all of its tokens. OccupancyOf::kAllHeads: 1, 1
  const float* occupancy = nullptr;  // [layers, tokens, heads]
  int64_t pooled = 1;                // heads whose occupancies each number sums; kAllHeads: layers · KV heads
  int64_t capacity = 0;              // M
  CapacityLaw law = CapacityLaw::kOverfull;
  float weight = 1;
  float* loss = nullptr;        // [1]
  int32_t* overfull = nullptr;  // [1], how many are
  float* gradient = nullptr;    // as occupancy, which it may alias
};

// By how much S lies above; 0 where it does not.
constexpr double excess_of(const CapacityHingeArgs& args, float occupancy) {
  const double above = double{occupancy} - static_cast<double>(args.pooled * args.capacity);
  return above <= 0 ? 0 : above;  // a NaN stays one
}

// What an excess of 1 costs at position t.
constexpr double excess_rate(const CapacityHingeArgs& args, int64_t t) {
  const int64_t room = args.law == CapacityLaw::kOverfull ? t - args.capacity : t + 1;
  const int64_t against = args.pooled * room;
  return 1.0 / static_cast<double>(against > 1 ? against : 1);
}

namespace cpu {
void capacity_hinge(const CapacityHingeArgs& args);
}
namespace cuda {
void capacity_hinge(const CapacityHingeArgs& args);
}

}  // namespace kv
