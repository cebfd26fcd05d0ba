#include "kernels/rope.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 512;  // of a single token, many have to read at once

// One block a token: the angles are taken once and serve all heads.
__global__ void rope_kernel(const bf16* input, bf16* output, RopeArgs args) {
  extern __shared__ float turns[];  // cosines, then sines
  let_next_start();
  wait_for_previous();
  const int half = args.head_dim / 2;
  const int64_t token = blockIdx.x;
  // Back is the turn by −angle, whose sine is the other way round.
  const float sine_factor = args.direction == RopeDirection::kBackward ? -args.attention_factor : args.attention_factor;
  for (int d = threadIdx.x; d < half; d += kThreads) {
    // Not contracted into a fused operation, and with the full range reduction: positions reach 500,000.
    const float angle = __fmul_rn(static_cast<float>(args.positions[token]), args.inv_freq[d]);
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    turns[d] = args.attention_factor * cosine;
    turns[half + d] = sine_factor * sine;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < args.heads * half; i += kThreads) {
    const int d = i % half;
    const int64_t at = (token * args.heads + i / half) * args.head_dim + d;
    const float a = to_f32(input[at]);
    const float b = to_f32(input[at + half]);
    output[at] = to_bf16(a * turns[d] - b * turns[half + d]);
    output[at + half] = to_bf16(b * turns[d] + a * turns[half + d]);
  }
}

}  // namespace

void rope(const RopeArgs& args) {
  KV_CHECK(args.head_dim % 2 == 0);
  launch_early(rope_kernel, args.tokens, kThreads, args.head_dim * sizeof(float), args.input.as<bf16>(),
               args.output.as<bf16>(), args);
}

}  // namespace kv::cuda
