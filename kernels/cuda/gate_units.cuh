#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/write_gate.h"

// A tile of a write gate's hidden units on its way to a block's shared memory, forward and back.

namespace kv::cuda {

inline constexpr int kGateThreads = 128;  // of a block
inline constexpr int kGateUnits = 64;     // of the hidden layer, at a time

// A thread has the same piece of every so-manieth row, zeros beyond the hidden layer and the rows' ends; where few
// tokens wait for their units, each instruction counts.
template <int W>
__device__ void stage_gate_units(const WriteGateArgs& args, int head, int first, bf16* tile) {
  constexpr int kPieces = W / 8, kAtOnce = kGateThreads / kPieces;
  static_assert(kAtOnce % 4 == 0 && (kAtOnce % 8 == 0 || W % 64 == 0));  // so that a row's twist only changes one bit
  const int width = 2 * args.head_dim, thread = static_cast<int>(threadIdx.x);
  const int row = thread / kPieces, first_value = thread % kPieces * 8;
  const int left = first_value < width ? args.hidden - first - row : 0;
  const auto* weights = static_cast<const bf16*>(args.weights.data);
  const bf16* from = weights + (int64_t{head} * args.hidden + first + row) * width + first_value;
  const int to = place<W>(row, first_value);
#pragma unroll
  for (int r = 0; r < kGateUnits; r += kAtOnce) {
    copy_or_zero(tile + ((to ^ r % 8 * 8) + r * W), from + static_cast<uint32_t>(r * width), r < left);
  }
}

// Biases and output weights by unit, one number a thread; zeros beyond the hidden layer, where rows are zeros, too.
__device__ inline void stage_gate_numbers(const WriteGateArgs& args, int head, int first, float2* units) {
  static_assert(kGateThreads == 2 * kGateUnits);
  const int unit = static_cast<int>(threadIdx.x) % kGateUnits, which = static_cast<int>(threadIdx.x) / kGateUnits;
  const float* from = (which == 0 ? args.bias : args.output_weights) + int64_t{head} * args.hidden + first + unit;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(&units[unit].x + which)),
               "l"(from), "r"(first + unit < args.hidden ? 4 : 0));
}

}  // namespace kv::cuda
