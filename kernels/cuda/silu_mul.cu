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

// The gradients take the places of gate and up.
__device__ void silu_mul_slopes(bf16 output_gradient, bf16& gate, bf16& up) {
  const float x = to_f32(gate);
  const float dy = to_f32(output_gradient);
  const float e = expf(-fabsf(x));
  const float above = (x < 0 ? e : 1.0f) / (1.0f + e);  // σ(x)
  const float below = (x < 0 ? 1.0f : e) / (1.0f + e);  // σ(−x), without the loss that 1 − σ(x) would have
  gate = to_bf16(dy * to_f32(up) * above * (1.0f + x * below));
  up = to_bf16(dy * (x * above));
}

__global__ void silu_mul_backward_wide(const uint4* output_gradient, const uint4* gate, const uint4* up,
                                       uint4* gate_gradient, uint4* up_gradient, int64_t words) {
  let_next_start();
  wait_for_previous();
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= words) return;
  const uint4 dy = output_gradient[i];
  uint4 g = gate[i];
  uint4 u = up[i];
  const auto* dy_values = reinterpret_cast<const bf16*>(&dy);
  auto* g_values = reinterpret_cast<bf16*>(&g);
  auto* u_values = reinterpret_cast<bf16*>(&u);
#pragma unroll
  for (int e = 0; e < kValues; ++e) silu_mul_slopes(dy_values[e], g_values[e], u_values[e]);
  gate_gradient[i] = g;
  up_gradient[i] = u;
}

__global__ void silu_mul_backward_narrow(const bf16* output_gradient, const bf16* gate, const bf16* up,
                                         bf16* gate_gradient, bf16* up_gradient, int64_t first, int64_t count) {
  let_next_start();
  wait_for_previous();
  const int64_t i = first + blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= count) return;
  bf16 g = gate[i], u = up[i];
  silu_mul_slopes(output_gradient[i], g, u);
  gate_gradient[i] = g;
  up_gradient[i] = u;
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

void silu_mul_backward(const SiluMulBackwardArgs& args) {
  const bf16* output_gradient = args.output_gradient.as<bf16>();
  const bf16* gate = args.gate.as<bf16>();
  const bf16* up = args.up.as<bf16>();
  bf16* gate_gradient = args.gate_gradient.as<bf16>();
  bf16* up_gradient = args.up_gradient.as<bf16>();
  const bool wide = is_aligned(output_gradient, 16) && is_aligned(gate, 16) && is_aligned(up, 16) &&
                    is_aligned(gate_gradient, 16) && is_aligned(up_gradient, 16);
  const int64_t words = wide ? args.count / kValues : 0;
  launch_early(silu_mul_backward_wide, ceil_div(words, kThreads), kThreads, 0,
               reinterpret_cast<const uint4*>(output_gradient), reinterpret_cast<const uint4*>(gate),
               reinterpret_cast<const uint4*>(up), reinterpret_cast<uint4*>(gate_gradient),
               reinterpret_cast<uint4*>(up_gradient), words);
  const int64_t tail = words * kValues;
  launch_early(silu_mul_backward_narrow, ceil_div(args.count - tail, kThreads), kThreads, 0, output_gradient, gate, up,
               gate_gradient, up_gradient, tail, args.count);
}

}  // namespace kv::cuda
