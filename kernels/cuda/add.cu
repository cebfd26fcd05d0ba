#include "kernels/add.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kValues = 8;  // a thread, one 16-byte word of each input

__device__ bf16 sum_of(bf16 first, bf16 second) { return to_bf16(to_f32(first) + to_f32(second)); }

__global__ void add_wide(const uint4* first, const uint4* second, uint4* output, int64_t words) {
  let_next_start();
  wait_for_previous();
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= words) return;
  uint4 a = first[i];
  const uint4 b = second[i];
  auto* a_values = reinterpret_cast<bf16*>(&a);
  const auto* b_values = reinterpret_cast<const bf16*>(&b);
#pragma unroll
  for (int e = 0; e < kValues; ++e) a_values[e] = sum_of(a_values[e], b_values[e]);
  output[i] = a;
}

__global__ void add_narrow(const bf16* first, const bf16* second, bf16* output, int64_t begin, int64_t count) {
  let_next_start();
  wait_for_previous();
  const int64_t i = begin + blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) output[i] = sum_of(first[i], second[i]);
}

}  // namespace

void add(const AddArgs& args) {
  const bf16* first = args.first.as<bf16>();
  const bf16* second = args.second.as<bf16>();
  bf16* output = args.output.as<bf16>();
  const bool wide = is_aligned(first, 16) && is_aligned(second, 16) && is_aligned(output, 16);
  const int64_t words = wide ? args.count / kValues : 0;
  launch_early(add_wide, ceil_div(words, kThreads), kThreads, 0, reinterpret_cast<const uint4*>(first),
               reinterpret_cast<const uint4*>(second), reinterpret_cast<uint4*>(output), words);
  const int64_t tail = words * kValues;
  launch_early(add_narrow, ceil_div(args.count - tail, kThreads), kThreads, 0, first, second, output, tail, args.count);
}

}  // namespace kv::cuda
