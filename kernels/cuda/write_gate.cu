#include "kernels/write_gate.h"

#include "kernels/cuda/mma.cuh"

// A thread block has a tile of tokens of one KV head, whose inputs its warps hold in registers while tiles of hidden
// units stream by, the next on its way: the hidden layer never leaves the sums of its products. Of a block's four warps
// each has tokens of its own. Where tokens are few a block has one tile of units, of which each warp takes a slice, and
// a second kernel adds up: a decode step waits for one tile, not for all in turn. Either way a gate's terms are added
// up in the same order, so that how tokens lie in blocks changes no bit.

namespace kv::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kUnits = 64;  // of the hidden layer, at a time
constexpr int kSlices = kUnits / 16;
static_assert(kSlices == kWarps);

template <int W, bool kFew>
struct Shape {
  static constexpr int kTokens = kFew ? 16 : 16 * kWarps;
  static constexpr int kStages = kFew ? 1 : 2;
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

// Σ w2 · GELU(a + b1) over sixteen units of two tokens, as of all lanes of a row.
struct SliceSums {
  float of[2] = {};  // by half

  // sums: of units n · 8 …, without bias.
  __device__ void add(const float (&sums)[4], const float2* bias_and_weight, int n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 unit = bias_and_weight[n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2];
      of[e / 2] += unit.y * gelu(sums[e] + unit.x);
    }
  }
  __device__ void reduce() {
#pragma unroll
    for (float& sum : of) {
      sum += __shfl_xor_sync(kWarp, sum, 1);
      sum += __shfl_xor_sync(kWarp, sum, 2);
    }
  }
};

// Of so many units from one on: bias and output weight; beyond the hidden layer 0, where rows are zeros, too.
__device__ void load_units(const WriteGateArgs& args, int64_t head, int first, int count, float2* units) {
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int64_t at = head * args.hidden + first + i;
    units[i] = first + i < args.hidden ? float2{args.bias[at], args.output_weights[at]} : float2{0, 0};
  }
}

template <int W>
__device__ void stage_units(const WriteGateArgs& args, int64_t head, int first, bf16* tile) {
  const int width = 2 * args.head_dim;
  const bf16* weights = static_cast<const bf16*>(args.weights.data) + head * args.hidden * width;
  stage_rows<W>(tile, kUnits, width, threadIdx.x, kThreads,
                [&](int r) { return first + r < args.hidden ? weights + int64_t{first + r} * width : nullptr; });
}

__device__ void write(const WriteGateArgs& args, int64_t at, float logit) {
  const float gate = 1.0f / (1.0f + expf(-logit));
  args.gates[at] = gate;
  if (args.log_gates) args.log_gates[at] = logf(gate < args.kLeast ? args.kLeast : gate);  // a NaN stays one
}

template <int W>
__global__ void __launch_bounds__(kThreads) write_gate_kernel(WriteGateArgs args) {
  using Shape = Shape<W, false>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float parts[kSlices][Shape::kTokens];
  auto* staged = reinterpret_cast<bf16*>(shared);  // tiles of units
  bf16* inputs = staged + Shape::kStages * kUnits * W;
  auto* units = reinterpret_cast<float2*>(inputs + Shape::kTokens * W);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t head = blockIdx.x % args.kv_heads;
  const int64_t first = blockIdx.x / args.kv_heads * Shape::kTokens;
  const int64_t tokens = min(int64_t{Shape::kTokens}, args.tokens - first);
  const auto stage = [&](int unit) {
    if (unit < args.hidden) stage_units<W>(args, head, unit, staged + unit / kUnits % Shape::kStages * kUnits * W);
    commit_copies();
  };
  stage(0);
  load_units(args, head, 0, (args.hidden + kUnits - 1) / kUnits * kUnits, units);
  write_inputs<W, Shape::kTokens>(args, first, tokens, head, inputs);
  __syncthreads();
  HeldRows<W, 1> x;
  x.load(inputs, warp * 16, lane);

  float y[kSlices][2] = {};
  for (int unit = 0; unit < args.hidden; unit += kUnits) {
    stage(unit + kUnits);
    wait_copies<1>();
    __syncthreads();
    const bf16* tile = staged + unit / kUnits % Shape::kStages * kUnits * W;
#pragma unroll
    for (int slice = 0; slice < kSlices; slice += 2) {
      float sums[1][4][4];
      x.template times<4>(tile + slice * 16 * W, lane, sums);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        SliceSums total;
#pragma unroll
        for (int n = 0; n < 2; ++n) total.add(sums[0][2 * s + n], units + unit + (slice + s) * 16, n);
        total.reduce();
        y[slice + s][0] += total.of[0];
        y[slice + s][1] += total.of[1];
      }
    }
    __syncthreads();  // all are done with the tile whose place the next stage() takes
  }
  if (lane % 4 == 0) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int half = 0; half < 2; ++half) parts[slice][warp * 16 + lane / 4 + 8 * half] = y[slice][half];
    }
  }
  __syncthreads();
  if (static_cast<int64_t>(threadIdx.x) >= tokens) return;
  const int row = static_cast<int>(threadIdx.x);
  float sum = args.output_bias[head];
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) sum += parts[slice][row];
  write(args, (first + row) * args.kv_heads + head, sum);
}

// parts: [tokens, kv_heads, kSlices, unit tiles].
template <int W>
__global__ void __launch_bounds__(kThreads) few_write_gates(WriteGateArgs args, int unit_tiles, float* parts) {
  using Shape = Shape<W, true>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float2 units[kUnits];
  auto* tile = reinterpret_cast<bf16*>(shared);
  bf16* inputs = tile + kUnits * W;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int unit_tile = static_cast<int>(blockIdx.x % unit_tiles);
  const int64_t head = blockIdx.x / unit_tiles % args.kv_heads;
  const int64_t first = blockIdx.x / unit_tiles / args.kv_heads * Shape::kTokens;
  const int64_t tokens = min(int64_t{Shape::kTokens}, args.tokens - first);
  stage_units<W>(args, head, unit_tile * kUnits, tile);
  commit_copies();
  load_units(args, head, unit_tile * kUnits, kUnits, units);
  write_inputs<W, Shape::kTokens>(args, first, tokens, head, inputs);
  wait_copies<0>();
  __syncthreads();
  HeldRows<W, 1> x;
  x.load(inputs, 0, lane);
  float sums[1][2][4];
  x.times_sixteen(tile, warp * 16, lane, sums);
  SliceSums total;
#pragma unroll
  for (int n = 0; n < 2; ++n) total.add(sums[0][n], units + warp * 16, n);
  total.reduce();
  if (lane % 4 != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    if (row >= tokens) continue;
    parts[(((first + row) * args.kv_heads + head) * kSlices + warp) * unit_tiles + unit_tile] = total.of[half];
  }
}

__global__ void add_parts(WriteGateArgs args, int unit_tiles, const float* parts) {
  const int64_t gate = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (gate >= args.tokens * args.kv_heads) return;
  float sum = args.output_bias[gate % args.kv_heads];
  for (int slice = 0; slice < kSlices; ++slice) {
    float y = 0;
    for (int tile = 0; tile < unit_tiles; ++tile) y += parts[(gate * kSlices + slice) * unit_tiles + tile];
    sum += y;
  }
  write(args, gate, sum);
}

template <int W>
void run_few(const WriteGateArgs& args) {
  using Shape = Shape<W, true>;
  const auto unit_tiles = static_cast<int>(ceil_div(args.hidden, kUnits));
  const int64_t gates = args.tokens * args.kv_heads;
  const Scratch<float> parts(gates * kSlices * unit_tiles);
  launch(few_write_gates<W>, ceil_div(args.tokens, Shape::kTokens) * args.kv_heads * unit_tiles, kThreads,
         Shape::kSharedBytes, args, unit_tiles, parts.data());
  launch(add_parts, ceil_div(gates, kThreads), kThreads, 0, args, unit_tiles, parts.data());
}

// Some cards have no shared memory for so wide a layer.
template <int W>
void run_many(const WriteGateArgs& args) {
  using Shape = Shape<W, false>;
  const size_t units = static_cast<size_t>(ceil_div(args.hidden, kUnits)) * kUnits * sizeof(float2);
  const size_t parts = sizeof(float) * kSlices * Shape::kTokens;
  if (Shape::kSharedBytes + units + parts > shared_bytes_a_block()) return run_few<W>(args);
  launch(write_gate_kernel<W>, ceil_div(args.tokens, Shape::kTokens) * args.kv_heads, kThreads,
         Shape::kSharedBytes + units, args);
}

}  // namespace

void write_gate(const WriteGateArgs& args) {
  KV_CHECK(args.hidden > 0 && args.head_dim > 0 && args.head_dim <= args.kMostHeadDim && args.head_dim % 4 == 0);
  check_vectors(args.weights.as<bf16>(), 2 * args.head_dim);
  if (args.tokens == 0) return;
  constexpr int64_t kFewTokens = 256;  // below it a block that takes all units leaves multiprocessors idle
  with_width(2 * args.head_dim,
             [&](auto width) { args.tokens < kFewTokens ? run_few<width>(args) : run_many<width>(args); });
}

}  // namespace kv::cuda
