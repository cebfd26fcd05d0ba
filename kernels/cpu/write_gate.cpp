#include "kernels/write_gate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

// Tokens at a time: their hidden layer stays in the second-level cache.
constexpr int64_t kTile = 64;

float gelu(float a) { return 0.5F * a * (1.0F + std::erf(a * std::numbers::sqrt2_v<float> / 2)); }

void normalise(const float* from, int64_t dim, float* to) {
  float squares = 0;
  for (int64_t d = 0; d < dim; ++d) squares += from[d] * from[d];
  const float inverse = 1.0F / std::sqrt(squares / static_cast<float>(dim) + WriteGateArgs::kEpsilon);
  for (int64_t d = 0; d < dim; ++d) to[d] = from[d] * inverse;
}

// Tokens [first, first + count) of one KV head.
void gate_tile(const WriteGateArgs& args, int64_t head, int64_t first, int64_t count) {
  const int64_t dim = args.head_dim, inputs = 2 * dim, hidden = args.hidden;
  const Scratch memory(count * (inputs + hidden));
  float* x = memory.data();
  float* a = x + count * inputs;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = ((first + i) * args.kv_heads + head) * dim;
    normalise(args.pre_rope_keys.as<float>() + at, dim, x + i * inputs);
    normalise(args.keys.as<float>() + at, dim, x + i * inputs + dim);
  }
  gemm_nt(x, count, inputs, args.weights.as<float>() + head * hidden * inputs, hidden, inputs, inputs, a, hidden);
  const float* bias = args.bias + head * hidden;
  const float* output_weights = args.output_weights + head * hidden;
  for (int64_t i = 0; i < count; ++i) {
    float y = args.output_bias[head];
    for (int64_t h = 0; h < hidden; ++h) y += output_weights[h] * gelu(a[i * hidden + h] + bias[h]);
    args.gates[(first + i) * args.kv_heads + head] = 1.0F / (1.0F + std::exp(-y));
  }
}

}  // namespace

void write_gate(const WriteGateArgs& args) {
  KV_CHECK(args.hidden > 0 && args.head_dim > 0 && args.head_dim <= args.kMostHeadDim && args.head_dim % 4 == 0);
  const int64_t tiles = (args.tokens + kTile - 1) / kTile;
  parallel_for(tiles * args.kv_heads, [&](int64_t task) {
    const int64_t first = task / args.kv_heads * kTile;
    gate_tile(args, task % args.kv_heads, first, std::min(kTile, args.tokens - first));
  });
}

}  // namespace kv::cpu
