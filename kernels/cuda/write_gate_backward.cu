#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/write_gate.h"

// Three products are nearly all of the work: the hidden layer again, its slopes back to x, and the slopes by the
// tokens' x, summed over tokens. cuBLASLt's tensor-core kernels do each for all heads at once, from operands that the
// kernels below lay out: x by head, and the slopes both ways round, as sums over units and over tokens want them. Of
// sums over tokens, those of cuBLASLt have one order on one card, and those of these kernels one at all, by tiles.

namespace kv::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTokens = 64;  // of a tile of slopes
constexpr int kUnits = 32;

// As many heads as fit are taken together, or one. Of 4 K tokens of 96 units a head takes 5 MB, of 16 K of 512 75.
constexpr int64_t kMostScratchBytes = int64_t{64} << 20;

__device__ float normal_below(float a) {
  const float tail = normal_tail(fabsf(a));
  return a < 0 ? tail : 1.0f - tail;
}
__device__ float normal_density(float a) { return exp2_fast(-0.72134752f * a * a) * 0.39894228f; }

// Some of the heads. Tokens are padded to a multiple of eight, so that rows of tokens are whole words, by some whose
// x and slopes are 0.
struct Group {
  int64_t first_head;
  int heads;
  int64_t padded;
  bf16* x;               // [heads, padded, 2 head_dim]
  float* logits;         // [heads, padded]: the loss's slopes along y
  float* sums;           // [heads, padded, hidden]: W1 x; later [heads, padded, 2 head_dim]: slopes along x
  bf16* slopes;          // [heads, padded, hidden]: along W1 x
  bf16* slopes_by_unit;  // [heads, hidden, padded]
  float2* parts;         // [heads, token tiles, hidden]: what a tile adds to bias and output weight
};

__device__ float4 four_of(const bf16* from) {
  const uint2 raw = *reinterpret_cast<const uint2*>(from);
  const float2 low = to_f32_pair(raw.x), high = to_f32_pair(raw.y);
  return {low.x, low.y, high.x, high.y};
}
__device__ void put_four(bf16* to, const float4& x) {
  *reinterpret_cast<uint2*>(to) = {to_bf16_pair(x.x, x.y), to_bf16_pair(x.z, x.w)};
}
__device__ float dot_four(const float4& a, const float4& b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// A warp has a token of one head, each lane four numbers of either key, or none where the key has ended.
struct TokenWarp {
  int64_t token;
  int head;  // of the group
  __device__ explicit TokenWarp(const Group& group) {
    const int64_t warp = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
    token = warp / group.heads;
    head = static_cast<int>(warp % group.heads);
  }
};

// 1 / rms of the key that the warp holds.
__device__ float inverse_rms(const float4& key, int dim) {
  return rsqrtf(warp_reduce(dot_four(key, key), Add()) / static_cast<float>(dim) + WriteGateArgs::kEpsilon);
}

__device__ float logit_gradient(const WriteGateBackwardArgs& args, int64_t at) {
  const float gate = args.forward.gates[at];
  float gradient = 0;
  if (args.log_gate_gradient && gate >= WriteGateArgs::kLeast) gradient += (1.0f - gate) * args.log_gate_gradient[at];
  if (args.gate_gradient) gradient += gate * (1.0f - gate) * args.gate_gradient[at];
  return gradient;
}

__global__ void __launch_bounds__(kThreads) write_inputs(WriteGateBackwardArgs args, Group group) {
  let_next_start();
  wait_for_previous();
  const WriteGateArgs& forward = args.forward;
  const TokenWarp warp(group);
  if (warp.token >= group.padded) return;
  const int dim = forward.head_dim, lane = threadIdx.x % 32;
  const int64_t at = warp.token * forward.kv_heads + group.first_head + warp.head;
  const int64_t place = warp.head * group.padded + warp.token;
  const bool present = warp.token < forward.tokens;
  bf16* x = group.x + place * 2 * dim + lane * 4;
  float4 keys[2]{};
  if (present && lane * 4 < dim) {
    keys[0] = four_of(static_cast<const bf16*>(forward.pre_rope_keys.data) + at * dim + lane * 4);
    keys[1] = four_of(static_cast<const bf16*>(forward.keys.data) + at * dim + lane * 4);
  }
#pragma unroll
  for (const float4& key : keys) {
    const float scale = inverse_rms(key, dim);
    if (lane * 4 < dim) put_four(x, {key.x * scale, key.y * scale, key.z * scale, key.w * scale});
    x += dim;
  }
  if (lane == 0) group.logits[place] = present ? logit_gradient(args, at) : 0.0f;
}

// A block a tile of tokens and units of one head; a warp has units side by side, and every kWarps-th token.
__global__ void __launch_bounds__(kThreads)
    write_slopes(WriteGateArgs args, Group group, int64_t token_tiles, int unit_tiles) {
  constexpr int kPitch = kTokens + 2;  // so that a warp's units lie in different banks
  __shared__ __align__(4) bf16 tile[kUnits * kPitch];
  __shared__ float2 parts[kWarps][kUnits];
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int unit = static_cast<int>(blockIdx.x % unit_tiles) * kUnits + lane;
  const int64_t token_tile = blockIdx.x / unit_tiles % token_tiles, first = token_tile * kTokens;
  const int64_t head = blockIdx.x / unit_tiles / token_tiles;
  const bool present = unit < args.hidden;
  const int64_t parameter = (group.first_head + head) * args.hidden + unit;
  const float bias = present ? args.bias[parameter] : 0.0f;
  const float output_weight = present ? args.output_weights[parameter] : 0.0f;
  const int64_t place = head * group.padded + first;
  float products[kTokens / kWarps], of_logits[kTokens / kWarps];  // all on their way before the first is looked at
#pragma unroll
  for (int i = 0; i < kTokens / kWarps; ++i) {
    const int t = warp + i * kWarps;
    const bool is_there = present && first + t < group.padded;
    products[i] = is_there ? group.sums[(place + t) * args.hidden + unit] : 0.0f;
    of_logits[i] = is_there ? group.logits[place + t] : 0.0f;
  }
  float2 sum{};
#pragma unroll
  for (int i = 0; i < kTokens / kWarps; ++i) {
    const int t = warp + i * kWarps;
    const float a = products[i] + bias, below = normal_below(a);
    const float exact = of_logits[i] * output_weight * (below + a * normal_density(a));
    sum.x += exact;
    sum.y += of_logits[i] * (a * below);
    const bf16 slope = to_bf16(exact);
    if (present && first + t < group.padded) group.slopes[(place + t) * args.hidden + unit] = slope;
    tile[lane * kPitch + t] = slope;
  }
  parts[warp][lane] = sum;
  __syncthreads();
  for (int u = warp; u < kUnits; u += kWarps) {
    const int64_t of_unit = head * args.hidden + unit - lane + u, token = first + 2 * lane;
    if (unit - lane + u >= args.hidden || token >= group.padded) continue;
    *reinterpret_cast<uint32_t*>(group.slopes_by_unit + of_unit * group.padded + token) =
        *reinterpret_cast<const uint32_t*>(tile + u * kPitch + 2 * lane);
  }
  if (warp > 0 || !present) return;
  for (int w = 1; w < kWarps; ++w) sum.x += parts[w][lane].x, sum.y += parts[w][lane].y;
  group.parts[(head * token_tiles + token_tile) * args.hidden + unit] = sum;
}

// A block some units of one head; a warp adds up every kWarps-th tile of tokens.
__global__ void __launch_bounds__(kThreads)
    add_parts(WriteGateBackwardArgs args, Group group, int64_t token_tiles, int unit_tiles) {
  __shared__ float2 sums[kWarps][kUnits];
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, hidden = args.forward.hidden;
  const int unit = static_cast<int>(blockIdx.x % unit_tiles) * kUnits + lane;
  const int64_t head = blockIdx.x / unit_tiles;
  float2 sum{};
  for (int64_t tile = warp; tile < token_tiles && unit < hidden; tile += kWarps) {
    const float2 part = group.parts[(head * token_tiles + tile) * hidden + unit];
    sum.x += part.x, sum.y += part.y;
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || unit >= hidden) return;
  for (int w = 1; w < kWarps; ++w) sum.x += sums[w][lane].x, sum.y += sums[w][lane].y;
  const int64_t parameter = (group.first_head + head) * hidden + unit;
  args.bias_gradient[parameter] += sum.x;
  args.output_weight_gradient[parameter] += sum.y;
}

// A block a head.
__global__ void __launch_bounds__(kThreads) add_output_bias(Group group, float* gradient) {
  let_next_start();
  wait_for_previous();
  const float* logits = group.logits + blockIdx.x * group.padded;
  float sum = 0;
  for (int64_t token = threadIdx.x; token < group.padded; token += kThreads) sum += logits[token];
  sum = block_reduce(sum, 0.0f, Add());
  if (threadIdx.x == 0) gradient[group.first_head + blockIdx.x] += sum;
}

__global__ void __launch_bounds__(kThreads) add_to_keys(WriteGateBackwardArgs args, Group group) {
  let_next_start();
  wait_for_previous();
  const WriteGateArgs& forward = args.forward;
  const TokenWarp warp(group);
  if (warp.token >= forward.tokens) return;
  const int dim = forward.head_dim, first = threadIdx.x % 32 * 4;
  const int64_t at = (warp.token * forward.kv_heads + group.first_head + warp.head) * dim + first;
  const ConstRef keys[2] = {forward.pre_rope_keys, forward.keys};
  const Ref gradients[2] = {args.pre_rope_key_gradient, args.key_gradient};
  float4 held[2]{}, slopes[2]{}, before[2]{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!gradients[half].data || first >= dim) continue;
    const float* from = group.sums + ((warp.head * group.padded + warp.token) * 2 + half) * dim + first;
    held[half] = four_of(static_cast<const bf16*>(keys[half].data) + at);
    slopes[half] = *reinterpret_cast<const float4*>(from);
    before[half] = four_of(static_cast<const bf16*>(gradients[half].data) + at);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 key = held[half], slope = slopes[half], start = before[half];
    const float scale = inverse_rms(key, dim);
    const float along = warp_reduce(dot_four(slope, key), Add()) / static_cast<float>(dim);
    if (!gradients[half].data || first >= dim) continue;
    const float pull = scale * scale * along;
    put_four(static_cast<bf16*>(gradients[half].data) + at,
             {start.x + scale * (slope.x - pull * key.x), start.y + scale * (slope.y - pull * key.y),
              start.z + scale * (slope.z - pull * key.z), start.w + scale * (slope.w - pull * key.w)});
  }
}

void run(const WriteGateBackwardArgs& args, const Group& group) {
  const WriteGateArgs& forward = args.forward;
  const int64_t hidden = forward.hidden, inputs = int64_t{2} * forward.head_dim, heads = group.heads;
  const bf16* weights = forward.weights.as<bf16>() + group.first_head * hidden * inputs;
  float* weight_gradient = args.weight_gradient + group.first_head * hidden * inputs;
  const auto unit_tiles = static_cast<int>(ceil_div(hidden, kUnits));
  const int64_t token_tiles = ceil_div(group.padded, kTokens);
  launch_early(write_inputs, ceil_div(heads * group.padded, kWarps), kThreads, 0, args, group);
  gemm({.input = group.x,
        .weight = weights,
        .output = group.sums,
        .output_type = DType::kF32,
        .rows = group.padded,
        .in = inputs,
        .out = hidden,
        .count = heads});
  launch_early(write_slopes, heads * token_tiles * unit_tiles, kThreads, 0, forward, group, token_tiles, unit_tiles);
  launch_early(add_parts, heads * unit_tiles, kThreads, 0, args, group, token_tiles, unit_tiles);
  launch_early(add_output_bias, heads, kThreads, 0, group, args.output_bias_gradient);
  gemm({.input = group.slopes_by_unit,
        .weight = group.x,
        .weight_rows = WeightRows::kInputs,
        .addend = weight_gradient,
        .output = weight_gradient,
        .output_type = DType::kF32,
        .rows = hidden,
        .in = group.padded,
        .out = inputs,
        .count = heads});
  if (!args.pre_rope_key_gradient && !args.key_gradient) return;
  gemm({.input = group.slopes,
        .weight = weights,
        .weight_rows = WeightRows::kInputs,
        .output = group.sums,
        .output_type = DType::kF32,
        .rows = group.padded,
        .in = hidden,
        .out = inputs,
        .count = heads});
  launch_early(add_to_keys, ceil_div(heads * forward.tokens, kWarps), kThreads, 0, args, group);
}

void check(const WriteGateBackwardArgs& args) {
  const WriteGateArgs& forward = args.forward;
  KV_CHECK(forward.hidden > 0 && forward.head_dim > 0 && forward.head_dim <= forward.kMostHeadDim &&
           forward.head_dim % 4 == 0);
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
  const int64_t hidden = forward.hidden, inputs = int64_t{2} * forward.head_dim,
                padded = ceil_div(forward.tokens, 8) * 8;
  const int64_t token_tiles = ceil_div(padded, kTokens), most_sums = std::max(hidden, inputs);
  const int64_t bytes = padded * static_cast<int64_t>((inputs + 2 * hidden) * sizeof(bf16) + most_sums * sizeof(float));
  const int64_t together = std::clamp<int64_t>(kMostScratchBytes / bytes, 1, forward.kv_heads);
  const Scratch<bf16> x(together * padded * inputs), slopes(together * padded * hidden),
      slopes_by_unit(together * padded * hidden);
  const Scratch<float> logits(together * padded), sums(together * padded * most_sums);
  const Scratch<float2> parts(together * token_tiles * hidden);
  for (int64_t first = 0; first < forward.kv_heads; first += together) {
    run(args, {.first_head = first,
               .heads = static_cast<int>(std::min(together, forward.kv_heads - first)),
               .padded = padded,
               .x = x.data(),
               .logits = logits.data(),
               .sums = sums.data(),
               .slopes = slopes.data(),
               .slopes_by_unit = slopes_by_unit.data(),
               .parts = parts.data()});
  }
}

}  // namespace kv::cuda
