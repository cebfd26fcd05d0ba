#include "kernels/write_gate.h"

#include <cuda/atomic>

#include <algorithm>

#include "kernels/cuda/gate_units.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/mma.cuh"

// A thread block has a tile of tokens of one KV head, whose inputs its warps hold in registers while tiles of hidden
// units stream by, the next two on their way: the hidden layer never leaves the sums of its products. Of a block's four
// warps two share tokens, each with half of a tile's units. Where tokens are few a block has one tile of units, of
// which each warp takes a slice, and the last block of a tile of tokens to be done adds up for all of them: a decode
// step waits for one tile, not for all in turn. Either way a gate's terms are added up in the same order, so that how
// tokens lie in blocks changes no bit: slices in turn, the first two of all tiles apart from the last two.

namespace kv::cuda {

namespace {

constexpr int kThreads = kGateThreads, kWarps = kThreads / 32;
constexpr int kUnits = kGateUnits;  // of the hidden layer, at a time
constexpr int kSlice = 16, kSlices = kUnits / kSlice;
constexpr int kHalves = 2, kHalf = kUnits / kHalves;  // of a tile of units, which are added up apart
constexpr int kTilesTogether = 8;                     // whose sums are on their way to who adds them up
static_assert(kSlices == kWarps);

template <int W>
struct ManyTokens {
  static constexpr int kTokens = 64, kStages = 3;
  static constexpr int kRows = kTokens * kHalves / kWarps;  // a warp's
  static constexpr size_t kSharedBytes = kStages * kUnits * (W * sizeof(bf16) + sizeof(float2));
  static_assert(kTokens <= kUnits);  // inputs lie where the last stage will
};

template <int W>
struct FewTokens {
  static constexpr int kTokens = 16;  // a product's rows
  static constexpr size_t kSharedBytes = (kUnits + kTokens) * W * sizeof(bf16);
};

// How many tiles of units have been added to a head's tile of tokens. Always back at 0 after a launch.
constexpr int kMostMeetings = 4096;
__device__ unsigned int arrived[kMostMeetings];

// Eight numbers of a key from one on, `left` of which it has; zeros beyond.
template <bool kIsWide>
__device__ uint4 eight_of(const bf16* from, int left) {
  if (left <= 0) return uint4{};
  if constexpr (kIsWide) return *reinterpret_cast<const uint4*>(from);
  uint4 eight;
  auto* values = reinterpret_cast<bf16*>(&eight);
#pragma unroll
  for (int e = 0; e < 8; ++e) values[e] = e < left ? from[e] : to_bf16(0.0f);
  return eight;
}

// x of the block's tokens, zeros beyond them. Some lanes share a key, eight numbers each. kIsWide: keys are whole words
// of 16 bytes, and a thread sends for all of its before it looks at the first.
template <int W, int kTokens, bool kIsWide>
__device__ void write_keys(const WriteGateArgs& args, int64_t first, int tokens, int head, bf16* tile) {
  constexpr int kLanes = W / 16, kAtOnce = kThreads / kLanes, kRounds = kTokens < kAtOnce ? 1 : kTokens / kAtOnce;
  constexpr int kTogether = kIsWide ? kRounds : 1;
  const int dim = args.head_dim, thread = static_cast<int>(threadIdx.x);
  const int from = thread % kLanes * 8, left = dim - from;
  const float inverse_dim = 1.0f / static_cast<float>(dim);
#pragma unroll 1
  for (int round = 0; round < kRounds; round += kTogether) {
    const int some = round * kAtOnce + thread / kLanes;
    const int64_t at = ((first + some) * args.kv_heads + head) * dim + from;
    const int64_t stride = int64_t{kAtOnce} * args.kv_heads * dim;
    uint4 held[2 * kTogether];
    float squares[2 * kTogether] = {};
#pragma unroll
    for (int k = 0; k < 2 * kTogether; ++k) {
      const auto* keys = static_cast<const bf16*>((k < kTogether ? args.pre_rope_keys : args.keys).data);
      const bool present = some + k % kTogether * kAtOnce < tokens;
      held[k] = eight_of<kIsWide>(keys + at + k % kTogether * stride, present ? left : 0);
    }
#pragma unroll
    for (int k = 0; k < 2 * kTogether; ++k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 x = to_f32_pair(reinterpret_cast<const uint32_t*>(&held[k])[e]);
        squares[k] = __fmaf_rn(x.y, x.y, __fmaf_rn(x.x, x.x, squares[k]));
      }
    }
#pragma unroll
    for (int across = 1; across < kLanes; across *= 2) {
#pragma unroll
      for (float& sum : squares) sum += __shfl_xor_sync(kWarp, sum, across);
    }
#pragma unroll
    for (int k = 0; k < 2 * kTogether; ++k) {
      const int token = some + k % kTogether * kAtOnce, to = k / kTogether * dim + from;
      const float inverse = rsqrtf(__fmaf_rn(squares[k], inverse_dim, args.kEpsilon));
      auto* pairs = reinterpret_cast<uint32_t*>(&held[k]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 x = to_f32_pair(pairs[e]);
        pairs[e] = to_bf16_pair(x.x * inverse, x.y * inverse);
      }
      if constexpr (kIsWide) {
        if (token < kTokens && left > 0) *reinterpret_cast<uint4*>(tile + place<W>(token, to)) = held[k];
      } else {
        const auto* values = reinterpret_cast<const bf16*>(pairs);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if (token < kTokens && e < left) tile[place<W>(token, to + e)] = values[e];
        }
      }
    }
  }
}

template <int W, int kTokens>
__device__ void write_inputs(const WriteGateArgs& args, bool is_wide, int64_t first, int tokens, int head, bf16* tile) {
  if (is_wide) {
    write_keys<W, kTokens, true>(args, first, tokens, head, tile);
  } else {
    write_keys<W, kTokens, false>(args, first, tokens, head, tile);
  }
  const int width = 2 * args.head_dim, rest = W - width;
#pragma unroll 1
  for (int i = threadIdx.x; i < kTokens * rest; i += kThreads) {
    tile[place<W>(i / rest, width + i % rest)] = to_bf16(0.0f);
  }
}

// A unit's bias and output weight, and the next one's.
struct TwoUnits {
  float2 first, second;
};

// Σ w2 · GELU(a + b1) over a slice's units of two tokens, as of all lanes of a row.
struct SliceSums {
  float of[2] = {};  // by half

  // sums: of eight units, without bias; a lane has two.
  __device__ void add(const float (&sums)[4], const TwoUnits& units) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 unit = e % 2 == 0 ? units.first : units.second;
      of[e / 2] = __fmaf_rn(unit.y, gelu(__fadd_rn(sums[e], unit.x)), of[e / 2]);
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

__device__ void write(const WriteGateArgs& args, int64_t at, float logit) {
  const float gate = 1.0f / (1.0f + expf(-logit));
  args.gates[at] = gate;
  if (args.log_gates) args.log_gates[at] = logf(gate < args.kLeast ? args.kLeast : gate);  // a NaN stays one
}

template <int W>
__global__ void __launch_bounds__(kThreads, 2) write_gate_kernel(WriteGateArgs args, bool is_wide) {
  using Shape = ManyTokens<W>;
  constexpr int kStages = Shape::kStages, kM = Shape::kRows / 16;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float parts[kHalves][Shape::kTokens];
  auto* staged = reinterpret_cast<bf16*>(shared);
  auto* units = reinterpret_cast<float2*>(staged + kStages * kUnits * W);
  bf16* inputs = staged + (kStages - 1) * kUnits * W;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int half = warp % kHalves, row = warp / kHalves * Shape::kRows;
  const int block = static_cast<int>(blockIdx.x), head = block % args.kv_heads;
  const int64_t first = int64_t{block / args.kv_heads} * Shape::kTokens;
  const auto tokens = static_cast<int>(min(int64_t{Shape::kTokens}, args.tokens - first));
  const auto stage = [&](int tile) {
    const int unit = tile * kUnits, at = tile % kStages * kUnits;
    if (unit < args.hidden) {
      stage_gate_units<W>(args, head, unit, staged + at * W);
      stage_gate_numbers(args, head, unit, units + at);
    }
    commit_copies();
  };
  let_next_start();
  wait_for_previous();
#pragma unroll 1
  for (int tile = 0; tile < kStages - 1; ++tile) stage(tile);
  write_inputs<W, Shape::kTokens>(args, is_wide, first, tokens, head, inputs);
  __syncthreads();
  HeldRows<W, kM> x;
  x.load(inputs, row, lane);

  float y[kM][2] = {};
#pragma unroll 1
  for (int tile = 0; tile * kUnits < args.hidden; ++tile) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the tile is there for all, and all are done with the one whose place the next stage() takes
    stage(tile + kStages - 1);
    if (tile * kUnits + half * kHalf >= args.hidden) break;  // the others have no tile to come, either
    const int at = tile % kStages * kUnits + half * kHalf;
    float sums[kM][kHalf / 8][4];
    x.template times<kHalf / 8>(staged + at * W, lane, sums);
#pragma unroll
    for (int slice = 0; slice < kHalf / kSlice; ++slice) {
      SliceSums total[kM];
#pragma unroll
      for (int n = slice * 2; n < slice * 2 + 2; ++n) {
        const auto two = *reinterpret_cast<const float4*>(units + at + n * 8 + lane % 4 * 2);
#pragma unroll
        for (int m = 0; m < kM; ++m) total[m].add(sums[m][n], {{two.x, two.y}, {two.z, two.w}});
      }
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        total[m].reduce();
        y[m][0] += total[m].of[0], y[m][1] += total[m].of[1];
      }
    }
  }
  const float bias = args.output_bias[head];
  if (lane % 4 == 0) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) parts[half][row + m * 16 + lane / 4 + 8 * lower] = y[m][lower];
    }
  }
  __syncthreads();
  const int token = static_cast<int>(threadIdx.x);
  if (token >= tokens) return;
  write(args, (first + token) * args.kv_heads + head, bias + parts[0][token] + parts[1][token]);
}

// Asks the L2 cache for a block's units, where whoever has just written them leaves them: a hint cannot read what is
// out of date, so that it need not wait for the previous kernel.
__device__ void prefetch_units(const WriteGateArgs& args, int head, int first) {
#if __CUDA_ARCH__ >= 900
  const int64_t row = 2 * args.head_dim * sizeof(bf16), unit = int64_t{head} * args.hidden + first;
  const int count = min(kUnits, args.hidden - first), each = (count + kWarps - 1) / kWarps;
  const int from = static_cast<int>(threadIdx.x) / 32 * each, rows = min(each, count - from);
  if (threadIdx.x % 32 == 0 && rows > 0) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(static_cast<const char*>(args.weights.data) +
                                                                    (unit + from) * row),
                 "r"(static_cast<int>(rows * row)));
  }
  if (static_cast<int>(threadIdx.x) < count && threadIdx.x % 32 == 0) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(args.bias + unit + threadIdx.x));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(args.output_weights + unit + threadIdx.x));
  }
#endif
}

// Whether all other blocks of a tile of tokens have come before.
__device__ bool is_last(unsigned int& count, int blocks) {
  const unsigned int before =
      ::cuda::atomic_ref<unsigned int, ::cuda::thread_scope_device>(count).fetch_add(1, ::cuda::memory_order_acq_rel);
  if (before + 1 < static_cast<unsigned int>(blocks)) return false;
  count = 0;
  return true;
}

// parts: [token tiles, layers, kv_heads, unit tiles · kSlices, kTokens].
template <int W>
__global__ void __launch_bounds__(kThreads)
    few_write_gates(WriteGateArgs all, bool is_wide, int unit_tiles, float* parts) {
  using Shape = FewTokens<W>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float2 units[kUnits];
  __shared__ bool adds_up;
  auto* tile = reinterpret_cast<bf16*>(shared);
  bf16* inputs = tile + kUnits * W;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int block = static_cast<int>(blockIdx.x), unit_tile = block % unit_tiles;
  const int meeting = block / unit_tiles, head = meeting % all.kv_heads, of_tile = all.layers * all.kv_heads;
  const int64_t first = int64_t{meeting / of_tile} * Shape::kTokens;
  const WriteGateArgs args = of_layer<bf16>(all, meeting % of_tile / all.kv_heads);
  const auto tokens = static_cast<int>(min(int64_t{Shape::kTokens}, args.tokens - first));
  float* together = parts + int64_t{meeting} * unit_tiles * kSlices * Shape::kTokens;
  let_next_start();
  if (first == 0) prefetch_units(args, head, unit_tile * kUnits);
  wait_for_previous();
  const float bias = args.output_bias[head];
  stage_gate_units<W>(args, head, unit_tile * kUnits, tile);
  stage_gate_numbers(args, head, unit_tile * kUnits, units);
  commit_copies();
  write_inputs<W, Shape::kTokens>(args, is_wide, first, tokens, head, inputs);
  wait_copies<0>();
  __syncthreads();
  HeldRows<W, 1> x;
  x.load(inputs, 0, lane);
  float sums[1][2][4];
  x.times_sixteen(tile, warp * kSlice, lane, sums);
  SliceSums total;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const auto two = *reinterpret_cast<const float4*>(units + warp * kSlice + n * 8 + lane % 4 * 2);
    total.add(sums[0][n], {{two.x, two.y}, {two.z, two.w}});
  }
  total.reduce();
  if (lane % 4 == 0) {
    float* part = together + (unit_tile * kSlices + warp) * Shape::kTokens;
    part[lane / 4] = total.of[0];
    part[lane / 4 + 8] = total.of[1];
  }
  __syncthreads();  // the block's parts come before its arrival, and the others' arrivals before theirs are read
  if (threadIdx.x == 0) adds_up = is_last(arrived[meeting], unit_tiles);
  __syncthreads();
  if (!adds_up || warp > 0) return;
  const int token = lane % Shape::kTokens, half = lane / Shape::kTokens;
  float y = 0;
#pragma unroll 1
  for (int first_tile = 0; first_tile < unit_tiles; first_tile += kTilesTogether) {
    float terms[kTilesTogether][kHalf / kSlice];
#pragma unroll
    for (int t = 0; t < kTilesTogether; ++t) {
      const float* part = together + ((first_tile + t) * kSlices + half * kHalf / kSlice) * Shape::kTokens + token;
#pragma unroll
      for (int slice = 0; slice < kHalf / kSlice; ++slice) {
        terms[t][slice] = first_tile + t < unit_tiles ? __ldcg(part + slice * Shape::kTokens) : 0.0f;
      }
    }
#pragma unroll
    for (const auto& tile_terms : terms) {
#pragma unroll
      for (const float term : tile_terms) y += term;
    }
  }
  const float last = __shfl_down_sync(kWarp, y, Shape::kTokens);
  if (lane >= tokens) return;
  write(args, (first + token) * args.kv_heads + head, bias + y + last);
}

WriteGateArgs some_tokens(const WriteGateArgs& args, int64_t first, int64_t count) {
  const int64_t gates = first * args.kv_heads;
  WriteGateArgs some = args;
  some.tokens = count;
  for (ConstRef* keys : {&some.pre_rope_keys, &some.keys}) keys->data = keys->as<bf16>() + gates * args.head_dim;
  some.gates += gates;
  if (some.log_gates) some.log_gates += gates;
  return some;
}

template <int W>
void run_few(const WriteGateArgs& args, bool is_wide) {
  constexpr int kTokens = FewTokens<W>::kTokens;
  const int heads = args.layers * args.kv_heads;
  const auto unit_tiles = static_cast<int>(ceil_div(args.hidden, kUnits));
  const auto meetings = [&](int64_t tokens) { return ceil_div(tokens, kTokens) * heads; };
  if (args.layers > 1 && meetings(args.tokens) > kMostMeetings) {
    for (int layer = 0; layer < args.layers; ++layer) run_few<W>(of_layer<bf16>(args, layer), is_wide);
    return;
  }
  KV_CHECK(heads <= kMostMeetings);
  const int64_t most = std::min<int64_t>(args.tokens, kMostMeetings / heads * kTokens);
  const Scratch<float> parts(meetings(most) * unit_tiles * kSlices * kTokens);
  for (int64_t first = 0; first < args.tokens; first += most) {
    const int64_t count = std::min(args.tokens - first, most);
    launch_early(few_write_gates<W>, meetings(count) * unit_tiles, kThreads, FewTokens<W>::kSharedBytes,
                 some_tokens(args, first, count), is_wide, unit_tiles, parts.data());
  }
}

// Some cards have no shared memory for three tiles of the widest units.
template <int W>
void run_many(const WriteGateArgs& args, bool is_wide) {
  using Shape = ManyTokens<W>;
  constexpr size_t kParts = sizeof(float) * kHalves * Shape::kTokens;
  if (Shape::kSharedBytes + kParts > shared_bytes_a_block()) return run_few<W>(args, is_wide);
  for (int layer = 0; layer < args.layers; ++layer) {
    launch_early(write_gate_kernel<W>, ceil_div(args.tokens, Shape::kTokens) * args.kv_heads, kThreads,
                 Shape::kSharedBytes, of_layer<bf16>(args, layer), is_wide);
  }
}

}  // namespace

void write_gate(const WriteGateArgs& args) {
  KV_CHECK(args.hidden > 0 && args.head_dim > 0 && args.head_dim <= args.kMostHeadDim && args.head_dim % 4 == 0);
  check_vectors(args.weights.as<bf16>(), 2 * args.head_dim);
  if (args.tokens == 0) return;
  const bool is_wide =
      args.head_dim % 8 == 0 && is_aligned(args.pre_rope_keys.as<bf16>(), 16) && is_aligned(args.keys.as<bf16>(), 16);
  constexpr int64_t kFewTokens = 256;  // below it a block that takes all units leaves multiprocessors idle
  with_width(2 * args.head_dim, [&](auto width) {
    args.tokens < kFewTokens ? run_few<width>(args, is_wide) : run_many<width>(args, is_wide);
  });
}

}  // namespace kv::cuda
