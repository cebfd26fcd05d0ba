#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm.cuh"

// Products of a single row, as a decode step of one sequence has them: all that counts is how fast the weights stream.
// Each block takes an equal run of outputs, all its threads work on each of them, and every thread has the weights of
// several outputs on the way at once; sums meet in a fixed order, first in a warp, then among warps. The kernel starts
// early and sends for its first weights before it waits for its input, so that memory is not idle between two products.
// It only asks the L2 cache for them, where whoever has just written weights leaves them: a hint cannot read what is
// out of date.

namespace kv::cuda {

namespace {

constexpr int kMaxThreads = 512;
constexpr int kBlocks = 2;         // a multiprocessor
constexpr int kWord = 8;           // values of 16 bytes
constexpr int kTogether = 8;       // outputs whose weights a thread has on the way
constexpr int kMostOutputs = 128;  // of a block, whose partial sums wait in shared memory

// Sends for the first weights of the block, 4 KB a warp.
__device__ void prefetch_weights(const bf16* weights, int64_t bytes) {
#if __CUDA_ARCH__ >= 900
  constexpr int64_t kBytes = 4096;
  const int64_t from = threadIdx.x / 32 * kBytes;
  const int64_t count = min(kBytes, bytes - from);
  if (threadIdx.x % 32 > 0 || count <= 0) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(reinterpret_cast<const char*>(weights) + from),
               "r"(static_cast<int>(count)));
#endif
}

__device__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ float multiply_add(uint32_t a, uint32_t b, float sum) { return low(a) * low(b) + (high(a) * high(b) + sum); }

// sums[u] over the warp: lane l returns the one of u = l / (32 / kTogether). Each step halves what a lane holds.
__device__ float fold(float (&sums)[kTogether], int lane) {
  int across = 16;
#pragma unroll
  for (int left = kTogether / 2; left > 0; left /= 2, across /= 2) {
    const bool upper = lane & across;
#pragma unroll
    for (int u = 0; u < left; ++u) {
      const float mine = upper ? sums[u + left] : sums[u];
      sums[u] = mine + __shfl_xor_sync(kWarp, upper ? sums[u] : sums[u + left], across);
    }
  }
#pragma unroll
  for (; across > 0; across /= 2) sums[0] += __shfl_xor_sync(kWarp, sums[0], across);
  return sums[0];
}

// Products side by side: their outputs are numbered through.
struct Products {
  Gemm of[kMostProducts];
  int64_t first[kMostProducts + 1] = {};  // output of each, then how many there are
  int count = 0;
};

__global__ void __launch_bounds__(kMaxThreads, kBlocks) gemv_kernel(const __grid_constant__ Products products) {
  __shared__ float partial[kMostOutputs][kMaxThreads / 32];
  const int64_t in = products.of[0].in, all = products.first[products.count];
  const int64_t run = blockIdx.x * all / gridDim.x, end = (blockIdx.x + 1) * all / gridDim.x;
  const int words = static_cast<int>(in / kWord);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int product = 0;
  while (products.first[product + 1] <= run) ++product;
  let_next_start();
  prefetch_weights(products.of[product].weight + (run - products.first[product]) * in,
                   (min(end, products.first[product + 1]) - run) * in * sizeof(bf16));
  wait_for_previous();
  const auto* input = reinterpret_cast<const uint4*>(products.of[0].input);
  for (int64_t first = run; first < end;) {
    const auto* weight =
        reinterpret_cast<const uint4*>(products.of[product].weight) + (first - products.first[product]) * words;
    // As many in each round as in any other, or nearly: a round takes as long as memory answers.
    const int left = static_cast<int>(min(end, products.first[product + 1]) - first);
    const int rounds = (left + kTogether - 1) / kTogether, outputs = (left + rounds - 1) / rounds;
    float sums[kTogether] = {};
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
      uint4 w[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) w[u] = u < outputs ? __ldcs(weight + u * words + i) : uint4{};
      const uint4 x = input[i];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        sums[u] = multiply_add(w[u].x, x.x, sums[u]);
        sums[u] = multiply_add(w[u].y, x.y, sums[u]);
        sums[u] = multiply_add(w[u].z, x.z, sums[u]);
        sums[u] = multiply_add(w[u].w, x.w, sums[u]);
      }
    }
    constexpr int kLanes = 32 / kTogether;
    const float sum = fold(sums, lane);
    if (lane % kLanes == 0 && lane / kLanes < outputs) partial[first - run + lane / kLanes][warp] = sum;
    first += outputs;
    if (outputs == left) ++product;
  }
  __syncthreads();
  for (int64_t at = run + threadIdx.x; at < end; at += blockDim.x) {
    float sum = 0;
    for (int k = 0; k < static_cast<int>(blockDim.x / 32); ++k) sum += partial[at - run][k];
    int of = 0;
    while (products.first[of + 1] <= at) ++of;
    finish(products.of[of], 0, at - products.first[of], sum);
  }
}

}  // namespace

void gemv(std::span<const Gemm> products) {
  Products all;
  for (const Gemm& product : products) {
    KV_CHECK(product.rows == 1 && product.input == products[0].input && product.in == products[0].in);
    if (product.out == 0) continue;
    all.of[all.count] = product;
    all.first[all.count + 1] = all.first[all.count] + product.out;
    ++all.count;
  }
  const int64_t out = all.first[all.count];
  if (out == 0) return;
  // Every thread has as many words of an output as any other, or nearly; and so has every multiprocessor outputs.
  const int64_t words = products[0].in / kWord;
  const int64_t threads = ceil_div(ceil_div(words, ceil_div(words, kMaxThreads)), 32) * 32;
  const int64_t at_once = int64_t{kBlocks} * multiprocessors();
  const int64_t blocks = std::min(out, at_once * ceil_div(out, at_once * kMostOutputs));
  launch_early(gemv_kernel, blocks, static_cast<int>(threads), 0, all);
}

}  // namespace kv::cuda
