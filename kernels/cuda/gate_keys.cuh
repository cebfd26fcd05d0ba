#pragma once

#include "kernels/cuda/gate_units.cuh"

// Keys of a tile of tokens as a write gate's backward op reads them: through their norms, and their gradients back.

namespace kv::cuda {

inline constexpr int kGateTokens = 64;  // of a tile

__device__ inline float4 four_of(const uint2& raw) {
  const float2 low = to_f32_pair(raw.x), high = to_f32_pair(raw.y);
  return {low.x, low.y, high.x, high.y};
}
__device__ inline void put_four(bf16* to, const float4& x) {
  *reinterpret_cast<uint2*>(to) = {to_bf16_pair(x.x, x.y), to_bf16_pair(x.z, x.w)};
}
__device__ inline float dot_four(const float4& a, const float4& b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// Values from one token's slopes along x to the next one's, f32 in shared memory, so that rows of a product lie in
// different banks.
template <int W>
constexpr int kSlopePitch = W + 8;

// A tile of tokens of one head, which a block of kGateThreads has. Some lanes share a token's key, four numbers each,
// or none where the key has ended. A thread has every so-manieth token, and asks for some of them before it looks at
// the first.
template <int W>
struct GateKeys {
  static constexpr int kLanes = W / 8, kAtOnce = kGateThreads / kLanes;
  static constexpr int kTogether = kGateTokens / kAtOnce < 8 ? kGateTokens / kAtOnce : 8;
  int64_t first;
  int count;  // of tokens; there are none after those
  int heads, head, dim;
  float inverse_dim;
  int token = static_cast<int>(threadIdx.x) / kLanes, from = static_cast<int>(threadIdx.x) % kLanes * 4;

  __device__ GateKeys(const WriteGateArgs& args, int64_t tile, int of_head)
      : first(tile * kGateTokens),
        count(static_cast<int>(min(int64_t{kGateTokens}, args.tokens - first))),
        heads(args.kv_heads),
        head(of_head),
        dim(args.head_dim),
        inverse_dim(1.0f / static_cast<float>(dim)) {}
  __device__ int64_t place(int of) const { return (first + of) * heads + head; }
  __device__ bool has(int of) const { return of < count && from < dim; }
  __device__ uint2 read(const void* keys, int of) const {
    if (!has(of)) return {};
    return *reinterpret_cast<const uint2*>(static_cast<const bf16*>(keys) + place(of) * dim + from);
  }

  // Over the whole key.
  __device__ float mean(float value) const {
#pragma unroll
    for (int across = 1; across < kLanes; across *= 2) value += __shfl_xor_sync(kWarp, value, across);
    return value * inverse_dim;
  }
  __device__ float inverse_rms(const float4& key) const {
    return rsqrtf(mean(dot_four(key, key)) + WriteGateArgs::kEpsilon);
  }
};

// x of the block's tokens, zeros beyond them.
template <int W>
__device__ void write_gate_inputs(const WriteGateArgs& args, const GateKeys<W>& keys, bf16* x) {
  using Keys = GateKeys<W>;
  const int dim = args.head_dim, rest = W - 2 * dim;
#pragma unroll 1
  for (int first = keys.token; first < kGateTokens; first += Keys::kTogether * Keys::kAtOnce) {
    uint2 held[2][Keys::kTogether];
#pragma unroll
    for (int k = 0; k < Keys::kTogether; ++k) {
      held[0][k] = keys.read(args.pre_rope_keys.data, first + k * Keys::kAtOnce);
      held[1][k] = keys.read(args.keys.data, first + k * Keys::kAtOnce);
    }
#pragma unroll
    for (int i = 0; i < 2 * Keys::kTogether; ++i) {
      const int half = i / Keys::kTogether, k = i % Keys::kTogether;
      const float4 key = four_of(held[half][k]);
      const float scale = keys.inverse_rms(key);
      if (keys.from >= dim) continue;
      put_four(x + place<W>(first + k * Keys::kAtOnce, half * dim + keys.from),
               {key.x * scale, key.y * scale, key.z * scale, key.w * scale});
    }
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < kGateTokens * rest; i += kGateThreads) {
    x[place<W>(i / rest, 2 * dim + i % rest)] = to_bf16(0.0f);
  }
}

// Through the norm of one of the keys, if anyone asks. slopes: along x, of the first token.
template <int W>
__device__ void add_to_gate_keys(const void* from, void* gradient, const GateKeys<W>& keys, const float* slopes) {
  using Keys = GateKeys<W>;
  if (!gradient) return;
#pragma unroll 1
  for (int first = keys.token; first < kGateTokens; first += Keys::kTogether * Keys::kAtOnce) {
    uint2 held[Keys::kTogether], before[Keys::kTogether];
#pragma unroll
    for (int k = 0; k < Keys::kTogether; ++k) {
      held[k] = keys.read(from, first + k * Keys::kAtOnce);
      before[k] = keys.read(gradient, first + k * Keys::kAtOnce);
    }
#pragma unroll
    for (int k = 0; k < Keys::kTogether; ++k) {
      const int token = first + k * Keys::kAtOnce;
      const float4 key = four_of(held[k]), start = four_of(before[k]);
      float4 slope{};
      if (keys.has(token)) slope = *reinterpret_cast<const float4*>(slopes + token * kSlopePitch<W> + keys.from);
      const float scale = keys.inverse_rms(key);
      const float pull = scale * scale * keys.mean(dot_four(slope, key));
      if (!keys.has(token)) continue;
      put_four(static_cast<bf16*>(gradient) + keys.place(token) * keys.dim + keys.from,
               {start.x + scale * (slope.x - pull * key.x), start.y + scale * (slope.y - pull * key.y),
                start.z + scale * (slope.z - pull * key.z), start.w + scale * (slope.w - pull * key.w)});
    }
  }
}

}  // namespace kv::cuda
