#include "kernels/rms_norm.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// The sum of squares is taken over a whole row by `Team` threads; each then writes the places it has read, so that the
// output may be the input.
template <int Team>
__global__ void rms_norm_kernel(const bf16* input, const bf16* weight, bf16* output, int64_t rows, int64_t width,
                                float epsilon) {
  let_next_start();
  wait_for_previous();
  const int64_t row = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / Team;
  const int member = threadIdx.x % Team;
  if (row >= rows) return;  // whole teams leave
  const bf16* x = input + row * width;
  bf16* y = output + row * width;
  float sum = 0;
  for (int64_t i = member; i < width; i += Team) {
    const float value = to_f32(x[i]);
    sum += value * value;
  }
  if constexpr (Team == 32) {
    sum = warp_reduce(sum, Add());
  } else {
    sum = block_reduce(sum, 0.0f, Add());
  }
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + epsilon);
  for (int64_t i = member; i < width; i += Team) {
    y[i] = to_bf16(to_f32(x[i]) * scale * to_f32(weight[i]));
  }
}

// Rows of a model's width: up to four 16-byte words a thread stay in registers between the two passes.
constexpr int kWords = 4;

__global__ void rms_norm_wide(const uint4* input, const uint4* weight, uint4* output, int64_t words, float epsilon) {
  let_next_start();
  wait_for_previous();
  const uint4* x = input + blockIdx.x * words;
  uint4* y = output + blockIdx.x * words;
  uint4 held[kWords], weights_held[kWords];  // weights are read before anybody knows the sum
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int64_t i = threadIdx.x + int64_t{k} * kThreads;
    if (i >= words) break;
    held[k] = x[i];
    weights_held[k] = weight[i];
    const auto* values = reinterpret_cast<const bf16*>(&held[k]);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float value = to_f32(values[e]);
      sum += value * value;
    }
  }
  sum = block_reduce(sum, 0.0f, Add());
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(words * 8) + epsilon);
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int64_t i = threadIdx.x + int64_t{k} * kThreads;
    if (i >= words) break;
    const auto* weights = reinterpret_cast<const bf16*>(&weights_held[k]);
    auto* values = reinterpret_cast<bf16*>(&held[k]);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      values[e] = to_bf16(to_f32(values[e]) * scale * to_f32(weights[e]));
    }
    y[i] = held[k];
  }
}

}  // namespace

void rms_norm(const RmsNormArgs& args) {
  const bf16* input = args.input.as<bf16>();
  const bf16* weight = args.weight.as<bf16>();
  bf16* output = args.output.as<bf16>();
  const bool aligned = is_aligned(input, 16) && is_aligned(weight, 16) && is_aligned(output, 16);
  if (args.width <= 512) {
    launch_early(rms_norm_kernel<32>, ceil_div(args.rows, kThreads / 32), kThreads, 0, input, weight, output, args.rows,
                 args.width, args.epsilon);
  } else if (aligned && args.width % 8 == 0 && args.width <= kThreads * kWords * 8) {
    launch_early(rms_norm_wide, args.rows, kThreads, 0, reinterpret_cast<const uint4*>(input),
                 reinterpret_cast<const uint4*>(weight), reinterpret_cast<uint4*>(output), args.width / 8,
                 args.epsilon);
  } else {
    launch_early(rms_norm_kernel<kThreads>, args.rows, kThreads, 0, input, weight, output, args.rows, args.width,
                 args.epsilon);
  }
}

}  // namespace kv::cuda
