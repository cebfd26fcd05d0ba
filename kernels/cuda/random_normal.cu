#include "kernels/random_normal.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kValues = 8;  // a thread, a block's width apart, so that a warp writes neighbours

__device__ int byte_sum(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  constexpr unsigned kOnes = 0x01010101u;  // a dot product with ones sums four bytes
  return static_cast<int>(__dp4a(static_cast<unsigned>(z), kOnes, __dp4a(static_cast<unsigned>(z >> 32), kOnes, 0u)));
}

__device__ void store(float* output, float value) { *output = value; }
__device__ void store(bf16* output, float value) { *output = to_bf16(value); }

template <class T>
__global__ void random_normal_values(T* output, int64_t count, uint64_t seed, uint64_t first, float scale) {
  const int64_t begin = blockIdx.x * int64_t{kThreads * kValues} + threadIdx.x;
#pragma unroll
  for (int e = 0; e < kValues; ++e) {
    const int64_t i = begin + e * kThreads;
    if (i >= count) break;
    store(output + i, static_cast<float>(byte_sum(seed, first + static_cast<uint64_t>(i)) - 1020) * scale);
  }
  has_settled();  // what it fills may be a model's weights (device.cuh)
}

template <class T>
void fill(const RandomNormalArgs& args) {
  launch(random_normal_values<T>, ceil_div(args.count, kThreads * kValues), kThreads, 0, args.output.as<T>(),
         args.count, args.seed, static_cast<uint64_t>(args.first), args.sigma / 209.02153f);
}

}  // namespace

void random_normal(const RandomNormalArgs& args) {
  args.output.dtype == DType::kBF16 ? fill<bf16>(args) : fill<float>(args);
}

}  // namespace kv::cuda
