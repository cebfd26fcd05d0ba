#include "kernels/write_gate.h"

#include "kernels/cuda/mma.cuh"

// A thread block has a tile of tokens of one KV head, whose inputs its warps hold in registers while tiles of hidden
// units stream by, the next on its way: the hidden layer never leaves the sums of its products. Of a block's four warps
// each has tokens of its own, or, where tokens are few, all have the same and units of their own.

namespace kv::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kUnits = 64;  // of the hidden layer, at a time
constexpr int kSlices = kUnits / 16;
static_assert(kSlices == kWarps);

template <int W, bool kFew>
struct Shape {
  static constexpr int kTokens = kFew ? 16 : 16 * kWarps;
  static constexpr size_t kSharedBytes = (2 * kUnits + kTokens) * W * sizeof(bf16);
};

__device__ float gelu(float a) { return 0.5f * a * (1.0f + erff(a * 0.70710678f)); }

// x of one token: a warp normalises both keys, zeros beyond them.
template <int W>
__device__ void write_input(const WriteGateArgs& args, int64_t token, int64_t head, bf16* tile, int row) {
  const int dim = args.head_dim, lane = threadIdx.x % 32;
  const int64_t at = (token * args.kv_heads + head) * dim;
  const bf16* halves[2] = {static_cast<const bf16*>(args.pre_rope_keys.data) + at,
                           static_cast<const bf16*>(args.keys.data) + at};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float squares = 0;
    for (int d = lane; d < dim; d += 32) squares += to_f32(halves[half][d]) * to_f32(halves[half][d]);
    const float inverse = rsqrtf(warp_reduce(squares, Add()) / static_cast<float>(dim) + args.kEpsilon);
    for (int d = lane; d < dim; d += 32) {
      tile[place<W>(row, half * dim + d)] = to_bf16(to_f32(halves[half][d]) * inverse);
    }
  }
  for (int d = 2 * dim + lane; d < W; d += 32) tile[place<W>(row, d)] = to_bf16(0.0f);
}

template <int W, bool kFew>
__global__ void __launch_bounds__(kThreads) write_gate_kernel(WriteGateArgs args) {
  using Shape = Shape<W, kFew>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float parts[kSlices][Shape::kTokens];
  auto* staged = reinterpret_cast<bf16*>(shared);  // two tiles of units
  bf16* inputs = staged + 2 * kUnits * W;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t head = blockIdx.x % args.kv_heads;
  const int64_t first = blockIdx.x / args.kv_heads * Shape::kTokens;
  const int64_t tokens = min(int64_t{Shape::kTokens}, args.tokens - first);
  const int width = 2 * args.head_dim;
  const bf16* weights = static_cast<const bf16*>(args.weights.data) + head * args.hidden * width;
  const auto stage = [&](int unit) {
    if (unit < args.hidden) {
      stage_rows<W>(staged + unit / kUnits % 2 * kUnits * W, kUnits, width, threadIdx.x, kThreads,
                    [&](int r) { return unit + r < args.hidden ? weights + int64_t{unit + r} * width : nullptr; });
    }
    commit_copies();
  };
  stage(0);
  for (int row = warp; row < Shape::kTokens; row += kWarps) {
    // Rows beyond the tokens repeat the last one; nobody reads what comes of them.
    write_input<W>(args, first + min(int64_t{row}, tokens - 1), head, inputs, row);
  }
  __syncthreads();
  HeldRows<W, 1> x;
  x.load(inputs, kFew ? 0 : warp * 16, lane);

  float y[kSlices][2] = {};  // by slice, summed in one order however warps share them, so that blocks change no bit
  for (int unit = 0; unit < args.hidden; unit += kUnits) {
    stage(unit + kUnits);
    wait_copies<1>();
    __syncthreads();
    const bf16* tile = staged + unit / kUnits % 2 * kUnits * W;
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
    __syncthreads();  // all are done with the tile that the next but one takes the place of
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
