#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/inverse_rms.cuh"

// Products of a single row, as a decode step of one sequence has them: all that counts is how fast the weights stream.
// Each block takes an equal run of outputs, all its threads work on each of them, and every thread has the weights of
// several outputs on the way at once, and sends for the next before it folds the last ones' sums; sums meet in a fixed
// order, first in a warp, then among warps. The kernel starts early and loads its first weights before it waits
// for its input, so that memory is not idle between two products: no kernel of a step writes weights (device.cuh).

namespace kv::cuda {

namespace {

constexpr int kMaxThreads = 512;
constexpr int kBlocks = 2;         // a multiprocessor
constexpr int kWord = 8;           // values of 16 bytes
constexpr int kTogether = 8;       // outputs whose weights a thread has on the way
constexpr int kMostOutputs = 128;  // of a block, whose partial sums wait in shared memory

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
  InputNorm norm;
  float inverse_width = 0;
};

// What a block multiplies at once: of some outputs of one product a word a thread.
struct Piece {
  int64_t first = 0;  // of the outputs
  int outputs = 0;    // at most kTogether; 0 after the run
  int word = 0;       // of the block's first thread
  int product = 0;
  const uint4* weight = nullptr;  // of the first output
};

// A block's outputs, piece by piece: all words of some outputs, then those of the next.
struct Run {
  const Products& products;
  int64_t end;
  int words;  // of an output

  __device__ Piece begin_at(int64_t first, int product) const {
    Piece piece{.first = first, .product = product};
    if (first >= end) return piece;
    while (products.first[piece.product + 1] <= first) ++piece.product;
    // As many in each round as in any other, or nearly: a round takes as long as memory answers.
    const auto left = static_cast<int>(min(end, products.first[piece.product + 1]) - first);
    const int rounds = (left + kTogether - 1) / kTogether;
    piece.outputs = (left + rounds - 1) / rounds;
    piece.weight = reinterpret_cast<const uint4*>(products.of[piece.product].weight) +
                   (first - products.first[piece.product]) * words;
    return piece;
  }
  __device__ bool is_last_of_outputs(const Piece& piece) const {
    return piece.word + static_cast<int>(blockDim.x) >= words;
  }
  __device__ Piece after(Piece piece) const {
    if (is_last_of_outputs(piece)) return begin_at(piece.first + piece.outputs, piece.product);
    piece.word += static_cast<int>(blockDim.x);
    return piece;
  }
  __device__ void load(const Piece& piece, uint4 (&weights)[kTogether]) const {
    const int i = piece.word + static_cast<int>(threadIdx.x);
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      weights[u] = u < piece.outputs && i < words ? __ldcs(piece.weight + u * words + i) : uint4{};
    }
  }
};

// What the norm makes of the input, each thread the words that it multiplies itself. One block writes it for others.
__device__ void norm_input(const Products& products, int words, const uint4* weights, uint4* normed) {
  const auto* input = reinterpret_cast<const uint4*>(products.of[0].input);
  const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  float sum = 0;
  for (int i = thread; i < words; i += threads) {
    const uint4 held = normed[i] = input[i];
#pragma unroll
    for (int e = 0; e < kWord; ++e) {
      const float value = to_f32(reinterpret_cast<const bf16*>(&held)[e]);
      sum += value * value;
    }
  }
  const float scale = inverse_rms(block_reduce(sum, 0.0f, Add()), products.inverse_width, products.norm.epsilon);
  for (int i = thread; i < words; i += threads) {
    uint4 held = normed[i];
    const uint4 weight = weights[i];
#pragma unroll
    for (int e = 0; e < kWord; ++e) {
      bf16& value = reinterpret_cast<bf16*>(&held)[e];
      value = to_bf16(to_f32(value) * scale * to_f32(reinterpret_cast<const bf16*>(&weight)[e]));
    }
    normed[i] = held;
    if (blockIdx.x == 0) reinterpret_cast<uint4*>(products.norm.output)[i] = held;
  }
}

template <bool kNorms>
__global__ void __launch_bounds__(kMaxThreads, kBlocks) gemv_kernel(const __grid_constant__ Products products) {
  extern __shared__ __align__(16) uint4 normed[];  // [words], then the norm's weights
  __shared__ float partial[kMostOutputs][kMaxThreads / 32];
  const int64_t all = products.first[products.count];
  const int64_t first = blockIdx.x * all / gridDim.x, end = (blockIdx.x + 1) * all / gridDim.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Run run{.products = products, .end = end, .words = static_cast<int>(products.of[0].in / kWord)};
  const auto* input = reinterpret_cast<const uint4*>(products.of[0].input);
  uint4 weights[kTogether];
  float sums[kTogether] = {};
  let_next_start();
  Piece piece = run.begin_at(first, 0);
  run.load(piece, weights);
  if constexpr (kNorms) {
    uint4* norm_weights = normed + run.words;
    for (auto i = static_cast<int>(threadIdx.x); i < run.words; i += static_cast<int>(blockDim.x)) {
      norm_weights[i] = reinterpret_cast<const uint4*>(products.norm.weight)[i];
    }
    wait_for_previous();
    norm_input(products, run.words, norm_weights, normed);
  } else {
    wait_for_previous();
  }
  while (piece.outputs > 0) {
    const int i = piece.word + static_cast<int>(threadIdx.x);
    const uint4 x = i < run.words ? (kNorms ? normed : input)[i] : uint4{};
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      sums[u] = multiply_add(weights[u].x, x.x, sums[u]);
      sums[u] = multiply_add(weights[u].y, x.y, sums[u]);
      sums[u] = multiply_add(weights[u].z, x.z, sums[u]);
      sums[u] = multiply_add(weights[u].w, x.w, sums[u]);
    }
    const Piece done = piece;
    piece = run.after(done);
    run.load(piece, weights);
    if (!run.is_last_of_outputs(done)) continue;
    constexpr int kLanes = 32 / kTogether;
    const float sum = fold(sums, lane);
    if (lane % kLanes == 0 && lane / kLanes < done.outputs) partial[done.first - first + lane / kLanes][warp] = sum;
#pragma unroll
    for (float& of_output : sums) of_output = 0;
  }
  __syncthreads();
  for (int64_t at = first + threadIdx.x; at < end; at += blockDim.x) {
    float sum = 0;
    for (int k = 0; k < static_cast<int>(blockDim.x / 32); ++k) sum += partial[at - first][k];
    int of = 0;
    while (products.first[of + 1] <= at) ++of;
    finish(products.of[of], 0, at - products.first[of], sum);
  }
}

// With what is static more than a third of a multiprocessor's: it takes as many blocks as it is to have, not more where
// another has none yet.
size_t shared_bytes() { return shared_bytes_a_block() / (kBlocks + 1); }
static_assert(sizeof(float) * kMostOutputs * kMaxThreads / 32 >= 4096);

}  // namespace

bool norms_input(int64_t in) { return 2 * static_cast<size_t>(in) * sizeof(bf16) <= shared_bytes(); }

void gemv(std::span<const Gemm> products, const InputNorm& norm) {
  Products all;
  all.norm = norm;
  for (const Gemm& product : products) {
    KV_CHECK(product.rows == 1 && product.input == products[0].input && product.in == products[0].in);
    if (product.out == 0) continue;
    all.of[all.count] = product;
    all.first[all.count + 1] = all.first[all.count] + product.out;
    ++all.count;
  }
  const int64_t out = all.first[all.count];
  if (out == 0) return;
  KV_CHECK(!norm.weight || norms_input(products[0].in));
  // Every thread has as many words of an output as any other, or nearly; and so has every multiprocessor outputs.
  const int64_t words = products[0].in / kWord;
  const int64_t threads = ceil_div(ceil_div(words, ceil_div(words, kMaxThreads)), 32) * 32;
  const int64_t at_once = int64_t{kBlocks} * multiprocessors();
  const int64_t blocks = std::min(out, at_once * ceil_div(out, at_once * kMostOutputs));
  all.inverse_width = 1.0f / static_cast<float>(products[0].in);
  launch_early(norm.weight ? gemv_kernel<true> : gemv_kernel<false>, blocks, static_cast<int>(threads), shared_bytes(),
               all);
}

}  // namespace kv::cuda
