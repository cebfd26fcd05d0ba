#pragma once

#include <cstdint>

#include "kernels/token_heads.h"

namespace kv {

// What soft occupancies (kernels/occupancy.h) exceed a capacity by, as a loss: that of TRIM-KV's code, and 003's. With
// S summed over n = pooled heads of M entries each, a place, of a head and the token at position t, from 0, is overfull
// where S > n · M, and costs there
//   c = (S − n M) / max(1, n (t − M))
//   loss = mean of c over overfull places, 0 without any;  gradient = weight · ∂loss/∂S,  0 where S <= n · M
// Where each of several calls is told how many places of all of them are overfull, losses add up to that of all, and
// gradients are its own.
// A NaN counts as overfull, so it shows in the loss. Sums in double.
struct CapacityHingeArgs {
  TokenHeads shape;  // of the occupancy; its segments hold all of its tokens. OccupancyOf::kAllHeads: 1, 1
  const float* occupancy = nullptr;  // [layers, tokens, heads]
  int64_t pooled = 1;                // heads whose occupancies each number sums; kAllHeads: layers · KV heads
  int64_t capacity = 0;              // M
  int64_t mean_over = 0;             // places; 0: those that are overfull here
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

// What one overfull place has in the mean, of so many here.
constexpr double overfull_share(const CapacityHingeArgs& args, int64_t overfull) {
  const int64_t all = args.mean_over > 0 ? args.mean_over : overfull;
  return all > 0 ? 1.0 / static_cast<double>(all) : 0;
}

// What an excess of 1 costs at position t.
constexpr double excess_rate(const CapacityHingeArgs& args, int64_t t) {
  const int64_t against = args.pooled * (t - args.capacity);
  return 1.0 / static_cast<double>(against > 1 ? against : 1);
}

namespace cpu {
void capacity_hinge(const CapacityHingeArgs& args);
}
namespace cuda {
void capacity_hinge(const CapacityHingeArgs& args);
}

}  // namespace kv
