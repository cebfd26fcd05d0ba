#include "kernels/write_gate.h"

#include "kernels/cuda/mma.cuh"

// A thread block has a tile of tokens of one KV head, whose inputs its warps hold in registers while tiles of hidden
// units stream by, the next ones on their way: the hidden layer never leaves the sums of its products. Of a block's
// four warps each has tokens of its own, or, where tokens are few, all have the same and units of their own.

namespace kv::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kUnits = 64;  // of the hidden layer, at a time
constexpr int kSlices = kUnits / 16;
static_assert(kSlices == kWarps);

template <int W, bool kFew>
struct Shape {
  static constexpr int kTokens = kFew ? 16 : 16 * kWarps;
  static constexpr int kStages = kFew ? 4 : 2;  // tiles of units under way: a block that is alone waits for memory
  static constexpr size_t kSharedBytes = (kStages * kUnits + kTokens) * W * sizeof(bf16);
};

__device__ float gelu(float a) { return 0.5f * a * (1.0f + erff(a * 0.70710678f)); }

// x of the block's tokens, zeros beyond them: each warp normalises the keys of four tokens together, so that it waits
// for memory once.
template <int W, int kTokens>
__device__ void write_inputs(const WriteGateArgs& args, int64_t first, int64_t tokens, int64_t head, bf16* tile) {
  constexpr int kTogether = 4, kEach = (W / 2 + 31) / 32;  // numbers of a key that a lane has
  static_assert(kTokens % (kTogether * kWarps) == 0);
  const int dim = args.head_dim, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bf16* keys[2] = {static_cast<const bf16*>(args.pre_rope_keys.data), static_cast<const bf16*>(args.keys.data)};
  for (int group = warp * kTogether; group < kTokens; group += kWarps * kTogether) {
    float x[kTogether][2][kEach];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      const int64_t at = ((first + group + t) * args.kv_heads + head) * dim;
#pragma unroll
      for (int e = 0; e < 2 * kEach; ++e) {
        const int d = e % kEach * 32 + lane;
        x[t][e / kEach][e % kEach] = group + t < tokens && d < dim ? to_f32(keys[e / kEach][at + d]) : 0.0f;
      }
    }
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float squares = 0;
#pragma unroll
        for (int e = 0; e < kEach; ++e) squares += x[t][half][e] * x[t][half][e];
        const float inverse = rsqrtf(warp_reduce(squares, Add()) / static_cast<float>(dim) + args.kEpsilon);
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const int d = e * 32 + lane;
          if (d < dim) tile[place<W>(group + t, half * dim + d)] = to_bf16(x[t][half][e] * inverse);
        }
      }
      for (int d = 2 * dim + lane; d < W; d += 32) tile[place<W>(group + t, d)] = to_bf16(0.0f);
    }
  }
}

template <int W, bool kFew>
__global__ void __launch_bounds__(kThreads) write_gate_kernel(WriteGateArgs args) {
  using Shape = Shape<W, kFew>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float parts[kSlices][Shape::kTokens];
  auto* staged = reinterpret_cast<bf16*>(shared);  // tiles of units
  bf16* inputs = staged + Shape::kStages * kUnits * W;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t head = blockIdx.x % args.kv_heads;
  const int64_t first = blockIdx.x / args.kv_heads * Shape::kTokens;
  const int64_t tokens = min(int64_t{Shape::kTokens}, args.tokens - first);
  const int width = 2 * args.head_dim;
  const bf16* weights = static_cast<const bf16*>(args.weights.data) + head * args.hidden * width;
  const auto stage = [&](int unit) {
    if (unit < args.hidden) {
      stage_rows<W>(staged + unit / kUnits % Shape::kStages * kUnits * W, kUnits, width, threadIdx.x, kThreads,
                    [&](int r) { return unit + r < args.hidden ? weights + int64_t{unit + r} * width : nullptr; });
    }
    commit_copies();
  };
  for (int s = 0; s < Shape::kStages - 1; ++s) stage(s * kUnits);
  write_inputs<W, Shape::kTokens>(args, first, tokens, head, inputs);
  __syncthreads();
  HeldRows<W, 1> x;
  x.load(inputs, kFew ? 0 : warp * 16, lane);

  float y[kSlices][2] = {};  // by slice, summed in one order however warps share them, so that blocks change no bit
  for (int unit = 0; unit < args.hidden; unit += kUnits) {
    stage(unit + (Shape::kStages - 1) * kUnits);
    wait_copies<Shape::kStages - 1>();
    __syncthreads();
    const bf16* tile = staged + unit / kUnits % Shape::kStages * kUnits * W;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      if (kFew && slice != warp) continue;
      float sums[1][2][4];
      x.times_sixteen(tile, slice * 16, lane, sums);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int h = unit + slice * 16 + n * 8 + lane % 4 * 2 + e % 2;
          if (h >= args.hidden) continue;
          const int64_t at = head * args.hidden + h;
          y[slice][e / 2] += args.output_weights[at] * gelu(sums[0][n][e] + args.bias[at]);
        }
      }
    }
    __syncthreads();  // all are done with the tile whose place the next stage() takes
  }
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) {
    if (kFew && slice != warp) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = y[slice][half];
      sum += __shfl_xor_sync(kWarp, sum, 1);
      sum += __shfl_xor_sync(kWarp, sum, 2);
      if (lane % 4 == 0) parts[slice][(kFew ? 0 : warp * 16) + lane / 4 + 8 * half] = sum;
    }
  }
  __syncthreads();
  if (static_cast<int64_t>(threadIdx.x) >= tokens) return;
  const int row = static_cast<int>(threadIdx.x);
  float sum = args.output_bias[head];
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) sum += parts[slice][row];
  args.gates[(first + row) * args.kv_heads + head] = 1.0f / (1.0f + expf(-sum));
}

template <int W, bool kFew>
void run(const WriteGateArgs& args) {
  const int64_t tiles = ceil_div(args.tokens, Shape<W, kFew>::kTokens);
  launch(write_gate_kernel<W, kFew>, tiles * args.kv_heads, kThreads, Shape<W, kFew>::kSharedBytes, args);
}

}  // namespace

void write_gate(const WriteGateArgs& args) {
  KV_CHECK(args.hidden > 0 && args.head_dim > 0 && args.head_dim <= args.kMostHeadDim && args.head_dim % 4 == 0);
  check_vectors(args.weights.as<bf16>(), 2 * args.head_dim);
  if (args.tokens == 0) return;
  constexpr int64_t kFewTokens = 1024;  // below it a token tile a warp would leave multiprocessors idle
  with_width(2 * args.head_dim,
             [&](auto width) { args.tokens < kFewTokens ? run<width, true>(args) : run<width, false>(args); });
}

}  // namespace kv::cuda
