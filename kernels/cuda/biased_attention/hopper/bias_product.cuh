#pragma once

#include "kernels/cuda/biased_attention/hopper/stream.cuh"

// Forward's biases as 16 columns more of q · k. To add a bias to a logit takes two instructions a pair, beside the five
// of a softmax; the tensor cores have time left. Backward's have none: there it took 6 to 8 % longer. Of a tile whose
// pairs are all alike – none masked, none of them in a window if others are not – each pair's bias is
//
//   bias(i, j) = Σ_p part_p(i − base) · factor_p(j),  p = 0 to 3,
//
// where base is the tile's first key, and the parts of i − base are its bits from the 16th on, its next eight, its last
// eight, and 1:
//
//   (i − j) · b_j:   the first three · b_j,  1 · (base − j) b_j
//   b_j:                                     1 · b_j
//
// A part is a number of bf16 as it is (i − base < 2^24). A factor is one of f32, so it goes as thirds: bf16 each, whose
// sum it is. In such tiles i − j is at least 1 and j − base less than 128, so summands are at most 128 times what they
// add up to: products and sums are as exact as f32's of that size.
//
// Part p has columns 2p, 2p + 1, 2p + 8 for the thirds, and 2p + 9, where the keys have 0: those that the p-th of four
// lanes holds of a left operand.

namespace kv::cuda {

inline constexpr int kBiasColumns = 16;
// The right operand, for kStep columns of logits: panels of 16 rows.
template <int kStep>
inline constexpr int kBiasBytes = kPanelBytes<kBiasColumns * kStep / kPanelColumns>;

template <Form kForm>
__device__ __forceinline__ float part_of(int part, int distance) {
  if (part == 3) return 1;
  if (kForm == Form::kOutsideWindow) return 0;
  return static_cast<float>(distance & (part == 0 ? ~0xffff : part == 1 ? 0xff00 : 0xff));
}

// b in units of logits before they are scaled; key − base is `behind`.
template <Form kForm>
__device__ __forceinline__ float factor_of(int part, float b, int behind) {
  return kForm == Form::kDistance && part == 3 ? static_cast<float>(-behind) * b : b;
}

// x is the sum of three numbers of bf16, as exactly as those have it.
struct Thirds {
  uint32_t first_two;  // the first in the lower half
  uint32_t last;       // in the lower half; the upper is 0
};
__device__ __forceinline__ Thirds thirds_of(float x) {
  const float second = x - __uint_as_float(to_bf16_pair(x, 0) << 16);
  const uint32_t first_two = to_bf16_pair(x, second);
  return {first_two, to_bf16_pair(second - __uint_as_float(first_two & 0xffff0000), 0)};
}

// The left operand: a thread's rows are `distance` from the base, and 8 more. All 0 where the tile's pairs are not
// alike.
template <Form kForm>
__device__ __forceinline__ void set_parts(uint32_t (&left)[4], int distance, bool alike, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float part = part_of<kForm>(lane % 4, distance + 8 * half);
    left[half] = left[half + 2] = alike ? to_bf16_pair(part, part) : 0;
  }
}

// Rows of the right operand: those of two keys next to each other, in the lane's place. The first is `behind` the base.
template <Form kForm>
__device__ __forceinline__ void write_factors(unsigned char* panel, const float (&b)[2], int behind, int lane) {
  const auto write = [&](int row, uint32_t pair) {
    void* piece = panel_piece(panel, row, lane / 4);
    static_cast<uint32_t*>(piece)[lane % 4] = pair;
  };
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const Thirds left = thirds_of(factor_of<kForm>(part, b[0], behind));
    const Thirds right = thirds_of(factor_of<kForm>(part, b[1], behind + 1));
    write(2 * part, __byte_perm(left.first_two, right.first_two, 0x5410));
    write(2 * part + 1, __byte_perm(left.first_two, right.first_two, 0x7632));
    write(2 * part + 8, left.last | right.last << 16);
  }
}

// Rows that nobody writes are 0. All threads of the block, before a __syncthreads.
template <int kBytes>
__device__ __forceinline__ void clear(unsigned char* panels) {
  for (int at = static_cast<int>(threadIdx.x) * 16; at < kBytes; at += static_cast<int>(blockDim.x) * 16) {
    *reinterpret_cast<uint4*>(panels + at) = uint4{};
  }
  publish_to_async();
}

// The warp that fills the ring's right operands. write(step, panel, column): rows of two keys of the step, from its
// `column`-th on, in a panel.
template <int kStep, int kStages, int kNumbers, class StepOf, class Write>
__device__ __forceinline__ void fill_biases(Ring<kStep, kStages, kNumbers>& ring, int steps, unsigned char* tiles,
                                            const StepOf& step_of, const Write& write) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int t = 0; t < steps; ++t) {
    const int stage = t % kStages;
    const Step step = step_of(t);
    ring.empty[0][stage].wait((t / kStages + 1) % 2);
#pragma unroll
    for (int panel = 0; panel < kStep / kPanelColumns; ++panel) {
      write(step, tiles + stage * kBiasBytes<kStep> + panel * kPanelBytes<kBiasColumns>,
            panel * kPanelColumns + 2 * lane);
    }
    publish_to_async();
    ring.full[0][stage].arrive();
  }
}

// sums += the biases. Not committed.
template <int kStep, int kSums>
__device__ __forceinline__ void add_bias_product(float (&sums)[kSums], const uint32_t (&left)[4],
                                                 const unsigned char* tile) {
  product_by_columns(sums, left, by_columns<kBiasColumns>(tile), 1);
}

}  // namespace kv::cuda
