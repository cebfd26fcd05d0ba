#include "kernels/silu_mul.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kValues = 8;  // a thread, one 16-byte word of each input

__device__ bf16 silu_mul_value(bf16 gate, bf16 up) {
  const float x = to_f32(gate);
  // e^−x may overflow to infinity, which gives the right limit: zero.
  return to_bf16(x / (1.0f + expf(-x)) * to_f32(up));
}

__global__ void silu_mul_wide(const uint4* gate, const uint4* up, uint4* output, int64_t words) {
  let_next_start();
  wait_for_previous();
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= words) return;
  uint4 g = gate[i];
  uint4 u = up[i];
  auto* g_values = reinterpret_cast<bf16*>(&g);
  const auto* u_values = reinterpret_cast<const bf16*>(&u);
#pragma unroll
  for (int e = 0; e < kValues; ++e) g_values[e] = silu_mul_value(g_values[e], u_values[e]);
  output[i] = g;
}

__global__ void silu_mul_narrow(const bf16* gate, const bf16* up, bf16* output, int64_t first, int64_t count) {
  let_next_start();
  wait_for_previous();
  const int64_t i = first + blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) output[i] = silu_mul_value(gate[i], up[i]);
}

}  // namespace

void silu_mul(const SiluMulArgs& args) {
  const bf16* gate = args.gate.as<bf16>();
  const bf16* up = args.up.as<bf16>();
  bf16* output = args.output.as<bf16>();
  const bool wide = is_aligned(gate, 16) && is_aligned(up, 16) && is_aligned(output, 16);
  const int64_t words = wide ? args.count / kValues : 0;
  launch_early(silu_mul_wide, ceil_div(words, kThreads), kThreads, 0, reinterpret_cast<const uint4*>(gate),
               reinterpret_cast<const uint4*>(up), reinterpret_cast<uint4*>(output), words);
  const int64_t tail = words * kValues;
  launch_early(silu_mul_narrow, ceil_div(args.count - tail, kThreads), kThreads, 0, gate, up, output, tail, args.count);
}

}  // namespace kv::cuda
