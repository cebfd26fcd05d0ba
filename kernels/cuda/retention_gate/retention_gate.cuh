#pragma once

#include <algorithm>

#include "kernels/cuda/gemm.cuh"
#include "kernels/retention_gate.h"

// Retention's gates on CUDA, and what their kernels share. retention_gate.cu picks one of two, by the gate's width:
//
//   narrow.cu   at most 64 units: one kernel takes a tile of tokens through all layers.
//   wide.cu     any: layers are products of cuBLASLt, with kernels between them.

namespace kv::cuda {

__device__ inline float sigmoid_at(float x, float e) { return (x < 0 ? e : 1.0f) / (1.0f + e); }  // e: e^−|x|

__device__ inline float silu(float x) { return x * sigmoid_at(x, expf(-fabsf(x))); }

__device__ inline float silu_slope(float x) {
  const float e = expf(-fabsf(x));
  // σ(−x) without the loss that 1 − σ(x) would have.
  return sigmoid_at(x, e) * (1.0f + x * sigmoid_at(-x, e));
}

// log σ(z); log1p keeps it apart from 0 where σ(z) itself would round to 1.
__device__ inline float log_sigmoid(float z) { return fminf(z, 0.0f) - log1pf(expf(-fabsf(z))); }

// ∂loss / ∂logit of a gate.
__device__ inline float logit_gradient(const RetentionGateBackwardArgs& args, int64_t gate) {
  const float other = args.other_gradient ? args.other_gradient[gate] : 0.0f;
  return -expm1f(args.forward.log_retention[gate]) * (args.log_retention_gradient[gate] + other);
}

// weight_gradient[units, in] += slopes[units, tokens] · x[tokens, in]
inline void add_over_tokens(const bf16* slopes, const bf16* x, int64_t tokens, int64_t units, int64_t in,
                            float* weight_gradient) {
  gemm({.input = slopes,
        .weight = x,
        .weight_rows = WeightRows::kInputs,
        .addend = weight_gradient,
        .output = weight_gradient,
        .output_type = DType::kF32,
        .rows = units,
        .in = tokens,
        .out = in});
}

// Calls with the first token and the number of a chunk's tokens. Chunks bound what layers of all heads hold in between;
// sums over tokens are those of a chunk after another. A chunk's tokens are a multiple of eight, which products over
// tokens need to have rows of 16 bytes; the last few are a chunk of their own.
template <class Visit>
void for_each_chunk(const RetentionGateArgs& args, const Visit& visit) {
  constexpr int64_t kUnits = 1 << 24;  // of all embeddings: 64 MB of sums; parts of narrow.cu's many heads take more
  constexpr int64_t kTokenRow = 8;
  const int64_t units = int64_t{args.hidden} * args.embeddings;
  const int64_t most = std::max(kTokenRow, kUnits / units / kTokenRow * kTokenRow);
  for (int64_t first = 0; first < args.tokens;) {
    const int64_t left = args.tokens - first;
    const int64_t count = left < kTokenRow ? left : std::min(most, left - left % kTokenRow);
    visit(first, count);
    first += count;
  }
}

void run_wide_forward(const RetentionGateArgs& args);
void run_wide_backward(const RetentionGateBackwardArgs& args);
void run_narrow_forward(const RetentionGateArgs& args);  // where is_narrow()
void run_narrow_backward(const RetentionGateBackwardArgs& args);
bool fits_narrow(const RetentionGateArgs& args);  // in this card's shared memory

inline constexpr int kMostNarrowUnits = 64;
inline constexpr int kMostNarrowHeads = 64;

// Rows of 16-byte pieces, which is what narrow.cu copies.
inline bool is_narrow(const RetentionGateArgs& args) {
  return args.hidden <= kMostNarrowUnits && args.kv_heads <= kMostNarrowHeads && args.hidden % 8 == 0 &&
         args.width % 8 == 0 && fits_narrow(args);
}

}  // namespace kv::cuda
