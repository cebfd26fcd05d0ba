#include <algorithm>

#include "kernels/cuda/gate_keys.cuh"
#include "kernels/cuda/gate_units.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/write_gate.h"

// Three kernels. In the first a block has a tile of tokens of one head: it makes their x, streams the hidden units by,
// as the forward op does, and from a tile of units' slopes adds to the slopes along x, which it takes through the norms
// at the end. What the second needs, x and the units' slopes, it leaves behind in tiles as they lie in shared memory.
// There a block has a tile of units and some tokens in a row, over which it sums slopes by x. The third adds up what
// the second's blocks have found. How tokens are split depends on the shape alone, and so does the order of sums.

namespace kv::cuda {

namespace {

constexpr int kThreads = kGateThreads;
constexpr int kUnits = kGateUnits, kTokens = kGateTokens;  // of a tile
constexpr int kSlice = 16;                                 // units at a time, whose sums a warp holds
constexpr int kRows = 32;  // of a tile of products, a warp's; it has half of the columns
constexpr int kRowGroups = 2;
static_assert(kRowGroups * kRows == kTokens && kTokens == kUnits && kThreads / 32 == kRowGroups * 2);

// As many heads as fit are taken together, or one. Of 4 K tokens of 96 units a head takes 2 MB, of 16 K of 512 25.
constexpr int64_t kMostScratchBytes = int64_t{64} << 20;
// Two for each multiprocessor of the largest cards, and on smaller ones some more.
constexpr int64_t kMostBlocks = 256;

// Some of the heads. Tiles of tokens and of units are whole, with slopes of 0 for tokens that are not there, and
// anything for units, as nobody reads on.
struct Group {
  int64_t first_head;
  int heads;
  int token_tiles;
  int unit_tiles;
  int range_tiles;      // token tiles that one block sums over
  int ranges;           // of so many tiles
  bf16* x;              // [heads, token tiles], tiles of [kTokens, W]
  bf16* slopes;         // [heads, token tiles, unit tiles], tiles of [kTokens, kUnits]: along W1 x
  float2* parts;        // [heads, token tiles, kRowGroups, hidden + 1]: what tokens add to bias and output weight, and
                        // to the output bias at the end
  float* weight_sums;   // [ranges, heads, hidden, 2 head_dim]
  float2* number_sums;  // [ranges, kRowGroups, heads, hidden + 1]: of parts
};

__device__ float normal_below(float a) {
  const float tail = normal_tail(fabsf(a));
  return a < 0 ? tail : 1.0f - tail;
}
__device__ float normal_density(float a) { return exp2_fast(-0.72134752f * a * a) * 0.39894228f; }

__device__ float logit_gradient(const WriteGateBackwardArgs& args, int64_t at) {
  const float gate = args.forward.gates[at];  // like the others on its way before any is looked at
  const float by_log = args.log_gate_gradient ? args.log_gate_gradient[at] : 0.0f;
  const float by_gate = args.gate_gradient ? args.gate_gradient[at] : 0.0f;
  return (1.0f - gate) * ((gate >= WriteGateArgs::kLeast ? by_log : 0.0f) + gate * by_gate);
}

template <int Values>
__device__ void copy_tile(bf16* to, const bf16* from) {
#pragma unroll
  for (int i = 0; i < Values; i += 8 * kThreads) {
    const int at = i + static_cast<int>(threadIdx.x) * 8;
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
  }
}

template <int Values>
__device__ void copy_tile_async(bf16* to, const bf16* from) {
#pragma unroll
  for (int i = 0; i < Values; i += 8 * kThreads) {
    const int at = i + static_cast<int>(threadIdx.x) * 8;
    copy_async(to + at, from + at);
  }
}

// Adds to a warp's sums, kRows by 8 N of them, `steps` times 16 products. left(a, step, m) and right(b, step, pair)
// load operands, those of 16 rows and those of 16 columns.
template <int N, class Left, class Right>
__device__ void add_products(int steps, const Left& left, const Right& right, float (&sums)[2][N][4]) {
#pragma unroll 4
  for (int step = 0; step < steps; ++step) {
    uint32_t a[2][4], b[4];
    left(a[0], step, 0);
    left(a[1], step, 1);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      right(b, step, n / 2);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        multiply_add(sums[m][n], a[m], b[0], b[1]);
        multiply_add(sums[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Sums each of eight numbers over the lanes that share columns, which differ in lane / 4; one gets the lane / 4-th sum.
__device__ float sum_over_rows(float (&of)[8], int lane) {
#pragma unroll
  for (int count = 4; count > 0; count /= 2) {
    const bool is_upper = lane & 4 * count;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float kept = is_upper ? of[i + count] : of[i], sent = is_upper ? of[i] : of[i + count];
      of[i] = kept + __shfl_xor_sync(kWarp, sent, 4 * count);
    }
  }
  return of[0];
}

// A warp's slopes of a slice's units, which begin at `unit` of the tile, from the products for them: to the tile of
// slopes, and their sums over tokens to `parts`, of which so many units are there.
__device__ void write_slice(const float (&sums)[2][2][4], const float (&logits)[2][2], const float2* units, int row,
                            int unit, int lane, bf16* slopes, float2* parts, int present) {
  float added[8] = {};  // by n and e, to bias and to output weight
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int first = unit + n * 8 + lane % 4 * 2;
    const float2 numbers[2] = {units[first], units[first + 1]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = i / 2, lower = i % 2;
      float slope[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float a = sums[m][n][lower * 2 + e] + numbers[e].x, below = normal_below(a), logit = logits[m][lower];
        slope[e] = logit * numbers[e].y * (below + a * normal_density(a));
        added[n * 4 + e * 2] += slope[e];
        added[n * 4 + e * 2 + 1] += logit * (a * below);
      }
      *reinterpret_cast<uint32_t*>(slopes + place<kUnits>(row + m * 16 + lower * 8 + lane / 4, first)) =
          to_bf16_pair(slope[0], slope[1]);
    }
  }
  const float sum = sum_over_rows(added, lane);
  const int of = unit + lane / 16 * 8 + lane % 4 * 2 + lane / 8 % 2;
  if (of < present) (lane / 4 % 2 == 0 ? parts[of].x : parts[of].y) = sum;
}

// A warp's slopes along x to a tile of all of them.
template <int W>
__device__ void put_sums(const float (&sums)[2][W / 16][4], int row, int column, int lane, float* tile) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < W / 16; ++n) {
      float* to = tile + (row + m * 16 + lane / 4) * kSlopePitch<W> + column + n * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(to) = {sums[m][n][0], sums[m][n][1]};
      *reinterpret_cast<float2*>(to + 8 * kSlopePitch<W>) = {sums[m][n][2], sums[m][n][3]};
    }
  }
}

// Of two tiles of units one is on its way.
template <int W, int Stages>
struct SlopeShape {
  static constexpr int kTileValues = kUnits * W;  // of units and of x
  static constexpr int kValues = (Stages + 1) * kTileValues + kTokens * kUnits;
  static constexpr size_t kSharedBytes = kValues * sizeof(bf16) + Stages * kUnits * sizeof(float2);
  static_assert(kTokens * kSlopePitch<W> * sizeof(float) <= kSharedBytes);  // slopes along x come last
};

template <int W, int Stages>
__global__ void __launch_bounds__(kThreads, W <= 128 ? 3 : 2) write_slopes(WriteGateBackwardArgs args, Group group) {
  using Shape = SlopeShape<W, Stages>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float logits[kTokens], scales[2 * kTokens];
  auto* staged = reinterpret_cast<bf16*>(shared);
  bf16* x = staged + Stages * Shape::kTileValues;
  bf16* slopes = x + Shape::kTileValues;
  auto* units = reinterpret_cast<float2*>(staged + Shape::kValues);
  const WriteGateArgs& forward = args.forward;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, thread = static_cast<int>(threadIdx.x);
  const int half = warp % 2, row = warp / 2 * kRows, column = half * W / 2;
  const int block = static_cast<int>(blockIdx.x), token_tile = block / group.heads, hidden = forward.hidden;
  const int head = static_cast<int>(group.first_head) + block % group.heads;
  const int64_t at_tile = int64_t{block % group.heads} * group.token_tiles + token_tile;
  const GateKeys<W> keys(forward, token_tile, head);
  float2* parts = group.parts + (at_tile * kRowGroups + warp / 2) * (hidden + 1);
  const bool wants_keys = args.pre_rope_key_gradient.data || args.key_gradient.data;
  const auto stage = [&](int tile) {
    if (tile < group.unit_tiles) {
      stage_gate_units<W>(forward, head, tile * kUnits, staged + tile % Stages * Shape::kTileValues);
      stage_gate_numbers(forward, head, tile * kUnits, units + tile % Stages * kUnits);
    }
    commit_copies();
  };
  let_next_start();
  wait_for_previous();
  if (Stages > 1) stage(0);
  const float logit = thread < keys.count ? logit_gradient(args, keys.place(thread)) : 0.0f;
  write_gate_inputs(forward, keys, x, scales);
  if (thread < kTokens) logits[thread] = logit;
  __syncthreads();
  copy_tile<Shape::kTileValues>(group.x + at_tile * Shape::kTileValues, x);
  float of_rows[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) of_rows[i / 2][i % 2] = logits[row + i * 8 + lane / 4];
  if (half == 0) {
    const float sum = warp_reduce(logits[row + lane], Add());
    if (lane == 0) parts[hidden] = {sum, 0};
  }

  float x_slopes[2][W / 16][4] = {};
#pragma unroll 1
  for (int tile = 0; tile < group.unit_tiles; ++tile) {
    if (Stages == 1) {
      __syncthreads();
      stage(tile);
    }
    wait_copies<0>();
    __syncthreads();  // the tile is there for all, and all are done with the one before and its slopes
    if (Stages > 1) stage(tile + 1);
    const int unit = tile * kUnits, at = tile % Stages * kUnits, present = min(kUnits, hidden - unit);
#pragma unroll 1
    for (int slice = half * kSlice; slice < present; slice += 2 * kSlice) {
      float sums[2][2][4] = {};
      add_products(
          W / 16, [&](auto& a, int step, int m) { load_left<W>(a, x, row + 16 * m, step, lane); },
          [&](auto& b, int step, int) { load_right<W>(b, staged + at * W, slice, step, lane); }, sums);
      write_slice(sums, of_rows, units + at, row, slice, lane, slopes, parts + unit, present);
    }
    __syncthreads();
    copy_tile<kTokens * kUnits>(group.slopes + (at_tile * group.unit_tiles + tile) * kTokens * kUnits, slopes);
    if (!wants_keys) continue;
    add_products((present + 15) / 16,
                 [&](auto& a, int step, int m) { load_left<kUnits>(a, slopes, row + 16 * m, step, lane); },
                 [&](auto& b, int step, int pair) {
                   load_right_by_columns<W>(b, staged + at * W, step * 16, column / 16 + pair, lane);
                 },
                 x_slopes);
  }
  if (!wants_keys) return;
  __syncthreads();  // nobody reads units any more
  auto* along_x = reinterpret_cast<float*>(shared);
  put_sums<W>(x_slopes, row, column, lane, along_x);
  __syncthreads();
  add_to_gate_keys(forward.pre_rope_keys.data, args.pre_rope_key_gradient.data, keys, scales, along_x);
  add_to_gate_keys(forward.keys.data, args.key_gradient.data, keys, scales + kTokens, along_x + forward.head_dim);
}

template <int W>
struct SumShape {
  static constexpr int kStages = W <= 128 ? 3 : 2, kValues = kTokens * (W + kUnits);  // x and slopes
  static constexpr size_t kSharedBytes = kStages * kValues * sizeof(bf16);
};

// Of the tokens of a range: what they add to a tile of units' numbers and, after the last tile, to the output bias.
__device__ void sum_parts(const Group& group, int hidden, int head, int unit_tile, int range) {
  const int thread = static_cast<int>(threadIdx.x), row_group = thread / kUnits, first = unit_tile * kUnits;
  const int unit_end = unit_tile + 1 == group.unit_tiles ? hidden + 1 : first + kUnits;
  const int begin = range * group.range_tiles, end = min(begin + group.range_tiles, group.token_tiles);
  const int64_t to = int64_t{range * kRowGroups + row_group} * group.heads + head;
#pragma unroll 1
  for (int unit = first + thread % kUnits; unit < unit_end; unit += kUnits) {
    float2 sum{};
#pragma unroll 8
    for (int tile = begin; tile < end; ++tile) {
      const int64_t from = (int64_t{head} * group.token_tiles + tile) * kRowGroups + row_group;
      const float2 part = group.parts[from * (hidden + 1) + unit];
      sum.x += part.x, sum.y += part.y;
    }
    group.number_sums[to * (hidden + 1) + unit] = sum;
  }
}

// A warp's sums, of units from first_unit on, to a head's [hidden, width].
template <int W>
__device__ void write_weights(const float (&sums)[2][W / 16][4], float* to, int first_unit, int column, int hidden,
                              int width, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int m = i / 2, lower = i % 2, unit = first_unit + i * 8 + lane / 4;
#pragma unroll
    for (int n = 0; n < W / 16; ++n) {
      const int input = column + n * 8 + lane % 4 * 2;
      if (unit >= hidden || input >= width) continue;
      *reinterpret_cast<float2*>(to + int64_t{unit} * width + input) = {sums[m][n][lower * 2],
                                                                        sums[m][n][lower * 2 + 1]};
    }
  }
}

// A block a range of tokens and a tile of units of one head.
template <int W>
__global__ void __launch_bounds__(kThreads, 2) sum_over_tokens(Group group, int hidden, int width) {
  using Shape = SumShape<W>;
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp / 2 * kRows, column = warp % 2 * W / 2, block = static_cast<int>(blockIdx.x);
  const int unit_tile = block % group.unit_tiles, head = block / group.unit_tiles % group.heads;
  const int range = block / group.unit_tiles / group.heads, first_unit = unit_tile * kUnits;
  const int begin = range * group.range_tiles, end = min(begin + group.range_tiles, group.token_tiles);
  const int64_t place = int64_t{head} * group.token_tiles;
  const auto staged = [&](int tile) {
    return reinterpret_cast<bf16*>(shared) + (tile - begin) % Shape::kStages * Shape::kValues;
  };
  const auto stage = [&](int tile) {
    if (tile < end) {
      const bf16* slopes = group.slopes + ((place + tile) * group.unit_tiles + unit_tile) * kTokens * kUnits;
      copy_tile_async<kTokens * W>(staged(tile), group.x + (place + tile) * kTokens * W);
      copy_tile_async<kTokens * kUnits>(staged(tile) + kTokens * W, slopes);
    }
    commit_copies();
  };
  let_next_start();
  wait_for_previous();
#pragma unroll 1
  for (int i = 0; i < Shape::kStages - 1; ++i) stage(begin + i);

  sum_parts(group, hidden, head, unit_tile, range);
  float sums[2][W / 16][4] = {};
#pragma unroll 1
  for (int tile = begin; tile < end; ++tile) {
    wait_copies<Shape::kStages - 2>();
    __syncthreads();  // the tile is there for all, and all are done with the one whose place the next stage() takes
    stage(tile + Shape::kStages - 1);
    if (first_unit + row >= hidden) continue;
    const bf16* x = staged(tile);
    add_products(
        kTokens / 16,
        [&](auto& a, int step, int m) {
          load_left_by_columns<kUnits>(a, x + kTokens * W, step * 16, row / 16 + m, lane);
        },
        [&](auto& b, int step, int pair) { load_right_by_columns<W>(b, x, step * 16, column / 16 + pair, lane); },
        sums);
  }
  float* to = group.weight_sums + (int64_t{range} * group.heads + head) * hidden * width;
  write_weights<W>(sums, to, first_unit + row, column, hidden, width, lane);
}

// A thread a parameter of W1, and after all of those one a unit's two numbers or a head's.
__global__ void __launch_bounds__(kThreads) add_up(WriteGateBackwardArgs args, Group group) {
  let_next_start();
  wait_for_previous();
  const int hidden = args.forward.hidden;
  const int64_t width = 2 * args.forward.head_dim, i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const int64_t weights = group.heads * hidden * width, numbers = group.heads * int64_t{hidden + 1};
  if (i < weights) {
    float sum = 0;
#pragma unroll 8
    for (int range = 0; range < group.ranges; ++range) sum += group.weight_sums[range * weights + i];
    args.weight_gradient[group.first_head * hidden * width + i] += sum;
    return;
  }
  const int64_t number = i - weights;
  if (number >= numbers) return;
  float2 sum{};
#pragma unroll 8
  for (int part = 0; part < group.ranges * kRowGroups; ++part) {
    const float2 some = group.number_sums[part * numbers + number];
    sum.x += some.x, sum.y += some.y;
  }
  const int64_t head = group.first_head + number / (hidden + 1), unit = number % (hidden + 1);
  if (unit == hidden) {
    args.output_bias_gradient[head] += sum.x;
  } else {
    args.bias_gradient[head * hidden + unit] += sum.x;
    args.output_weight_gradient[head * hidden + unit] += sum.y;
  }
}

template <int W, int Stages = 2>
void launch_slopes(const WriteGateBackwardArgs& args, const Group& group) {
  constexpr size_t kBytes = SlopeShape<W, Stages>::kSharedBytes,
                   kNumbers = 3 * kTokens * sizeof(float);  // logits and scales
  if constexpr (W > 128 && Stages > 1) {                    // for which some cards have no shared memory
    if (kBytes + kNumbers > shared_bytes_a_block()) return launch_slopes<W, 1>(args, group);
  }
  launch_early(write_slopes<W, Stages>, int64_t{group.heads} * group.token_tiles, kThreads, kBytes, args, group);
}

template <int W>
void run(const WriteGateBackwardArgs& args) {
  const WriteGateArgs& forward = args.forward;
  const int hidden = forward.hidden, width = 2 * forward.head_dim;
  const int64_t token_tiles = ceil_div(forward.tokens, kTokens), unit_tiles = ceil_div(hidden, kUnits);
  const int64_t x_values = token_tiles * kTokens * W, slope_values = token_tiles * unit_tiles * kTokens * kUnits;
  const auto bytes = (x_values + slope_values) * static_cast<int64_t>(sizeof(bf16));
  const int64_t together = std::clamp<int64_t>(kMostScratchBytes / bytes, 1, forward.kv_heads);
  const int64_t most_ranges = std::max<int64_t>(kMostBlocks / (together * unit_tiles), 1);
  const int64_t range_tiles = ceil_div(token_tiles, most_ranges), ranges = ceil_div(token_tiles, range_tiles);
  const Scratch<bf16> x(together * x_values), slopes(together * slope_values);
  const Scratch<float> weight_sums(ranges * together * hidden * width);
  const Scratch<float2> parts(together * token_tiles * kRowGroups * (hidden + 1)),
      number_sums(ranges * kRowGroups * together * (hidden + 1));
  for (int64_t first = 0; first < forward.kv_heads; first += together) {
    const Group group{.first_head = first,
                      .heads = static_cast<int>(std::min(together, forward.kv_heads - first)),
                      .token_tiles = static_cast<int>(token_tiles),
                      .unit_tiles = static_cast<int>(unit_tiles),
                      .range_tiles = static_cast<int>(range_tiles),
                      .ranges = static_cast<int>(ranges),
                      .x = x.data(),
                      .slopes = slopes.data(),
                      .parts = parts.data(),
                      .weight_sums = weight_sums.data(),
                      .number_sums = number_sums.data()};
    launch_slopes<W>(args, group);
    launch_early(sum_over_tokens<W>, ranges * group.heads * unit_tiles, kThreads, SumShape<W>::kSharedBytes, group,
                 hidden, width);
    const int64_t parameters = group.heads * (int64_t{hidden} * width + hidden + 1);
    launch_early(add_up, ceil_div(parameters, kThreads), kThreads, 0, args, group);
  }
}

void check(const WriteGateBackwardArgs& args) {
  const WriteGateArgs& forward = args.forward;
  KV_CHECK(forward.hidden > 0 && forward.head_dim > 0 && forward.head_dim <= forward.kMostHeadDim &&
           forward.head_dim % 4 == 0);
  check_vectors(forward.weights.as<bf16>(), 2 * forward.head_dim);
  for (const ConstRef keys : {forward.pre_rope_keys, forward.keys}) KV_CHECK(is_aligned(keys.as<bf16>(), 8));
  for (const Ref gradient : {args.pre_rope_key_gradient, args.key_gradient}) {
    KV_CHECK(!gradient || is_aligned(gradient.as<bf16>(), 8));
  }
}

}  // namespace

void write_gate_backward(const WriteGateBackwardArgs& args) {
  check(args);
  const WriteGateArgs& forward = args.forward;
  if (forward.tokens == 0 || (!args.log_gate_gradient && !args.gate_gradient)) return;
  with_width(2 * forward.head_dim, [&](auto width) { run<width>(args); });
}

}  // namespace kv::cuda
