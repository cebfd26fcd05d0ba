#pragma once

#include "kernels/cuda/gate_units.cuh"

// Keys of a tile of tokens as a write gate's backward op reads them: through their norms, and their gradients back.

namespace kv::cuda {

inline constexpr int kGateTokens = 64;  // of a tile

__device__ inline float4 four_of(const uint2& raw) {
  const float2 low = to_f32_pair(raw.x), high = to_f32_pair(raw.y);
  return {low.x, low.y, high.x, high.y};
}
// As one number, whose store the compiler leaves whole.
__device__ inline void put_four(bf16* to, const float4& x) {
  *reinterpret_cast<uint64_t*>(to) = to_bf16_pair(x.x, x.y) | uint64_t{to_bf16_pair(x.z, x.w)} << 32;
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
  int token = static_cast<int>(threadIdx.x) / kLanes, from = static_cast<int>(threadIdx.x) % kLanes * 4;
  int64_t begin = place(token) * dim + from;  // of the thread's first four
  float inverse_dim = 1.0f / static_cast<float>(dim);

  __device__ GateKeys(const WriteGateArgs& args, int64_t tile, int of_head)
      : first(tile * kGateTokens),
        count(static_cast<int>(min(int64_t{kGateTokens}, args.tokens - first))),
        heads(args.kv_heads),
        head(of_head),
        dim(args.head_dim) {}
  __device__ int64_t place(int of) const { return (first + of) * heads + head; }

  // So many tokens after the thread's first.
  __device__ bool has(int later) const { return token + later < count && from < dim; }
  __device__ int64_t at(int later) const { return begin + int64_t{later} * (heads * dim); }
  // Zeros where there is nothing; the first token's key is read then, because loads in branches do not leave together.
  __device__ uint2 read(const void* keys, int later) const {
    const bool present = has(later);
    const int64_t place_read = present ? at(later) : place(0) * dim;
    const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const bf16*>(keys) + place_read);
    return present ? raw : uint2{};
  }

  // Of lanes' sums of four, over whole keys.
  template <int Count>
  __device__ void to_means(float (&sums)[Count]) const {
#pragma unroll
    for (int across = 1; across < kLanes; across *= 2) {
#pragma unroll
      for (float& sum : sums) sum += __shfl_xor_sync(kWarp, sum, across);
    }
#pragma unroll
    for (float& sum : sums) sum *= inverse_dim;
  }
};

// x of the block's tokens, zeros beyond them. scales: [2, kGateTokens], 1 / rms of either key.
template <int W>
__device__ void write_gate_inputs(const WriteGateArgs& args, const GateKeys<W>& keys, bf16* x, float* scales) {
  using Keys = GateKeys<W>;
  const int dim = args.head_dim, rest = W - 2 * dim;
  const int to[2] = {place<W>(keys.token, keys.from), place<W>(keys.token, dim + keys.from)};
#pragma unroll 1
  for (int later = 0; later < kGateTokens; later += Keys::kTogether * Keys::kAtOnce) {
    uint2 held[2 * Keys::kTogether];
    float squares[2 * Keys::kTogether];
#pragma unroll
    for (int i = 0; i < 2 * Keys::kTogether; ++i) {
      const void* from = i < Keys::kTogether ? args.pre_rope_keys.data : args.keys.data;
      held[i] = keys.read(from, later + i % Keys::kTogether * Keys::kAtOnce);
    }
#pragma unroll
    for (int i = 0; i < 2 * Keys::kTogether; ++i) squares[i] = dot_four(four_of(held[i]), four_of(held[i]));
    keys.to_means(squares);
    if (keys.from >= dim) continue;
#pragma unroll
    for (int i = 0; i < 2 * Keys::kTogether; ++i) {
      const int half = i / Keys::kTogether, now = later + i % Keys::kTogether * Keys::kAtOnce;
      const float4 key = four_of(held[i]);
      const float scale = rsqrtf(squares[i] + WriteGateArgs::kEpsilon);
      // The thread's first token and `now` have no bit in common, so that their twists come together.
      put_four(x + ((to[half] ^ twist<W>(now) * 8) + now * W),
               {key.x * scale, key.y * scale, key.z * scale, key.w * scale});
      if (keys.from == 0) scales[half * kGateTokens + keys.token + now] = scale;
    }
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < kGateTokens * rest; i += kGateThreads) {
    x[place<W>(i / rest, 2 * dim + i % rest)] = to_bf16(0.0f);
  }
}

// Through the norm of one of the keys, if anyone asks. scales, slopes: 1 / rms and along x, of the first token.
template <int W>
__device__ void add_to_gate_keys(const void* from, void* gradient, const GateKeys<W>& keys, const float* scales,
                                 const float* slopes) {
  using Keys = GateKeys<W>;
  if (!gradient) return;
#pragma unroll 1
  for (int later = 0; later < kGateTokens; later += Keys::kTogether * Keys::kAtOnce) {
    uint2 held[Keys::kTogether], before[Keys::kTogether];
    float4 slope[Keys::kTogether];
    float along[Keys::kTogether];
#pragma unroll
    for (int k = 0; k < Keys::kTogether; ++k) {
      held[k] = keys.read(from, later + k * Keys::kAtOnce);
      before[k] = keys.read(gradient, later + k * Keys::kAtOnce);
    }
#pragma unroll
    for (int k = 0; k < Keys::kTogether; ++k) {
      const int token = keys.token + later + k * Keys::kAtOnce;
      slope[k] = *reinterpret_cast<const float4*>(slopes + token * kSlopePitch<W> + keys.from);
      along[k] = dot_four(slope[k], four_of(held[k]));
    }
    keys.to_means(along);
#pragma unroll
    for (int k = 0; k < Keys::kTogether; ++k) {
      const int now = later + k * Keys::kAtOnce;
      const float4 key = four_of(held[k]), start = four_of(before[k]);
      const float scale = scales[keys.token + now], pull = scale * scale * along[k];
      if (!keys.has(now)) continue;
      put_four(static_cast<bf16*>(gradient) + keys.at(now),
               {start.x + scale * (slope[k].x - pull * key.x), start.y + scale * (slope[k].y - pull * key.y),
                start.z + scale * (slope[k].z - pull * key.z), start.w + scale * (slope[k].w - pull * key.w)});
    }
  }
}

}  // namespace kv::cuda
