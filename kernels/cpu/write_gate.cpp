#include "kernels/write_gate.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

// Tokens at a time: their hidden layer stays in the second-level cache. On the way back they are as many as a product's
// sum over them holds in the first-level one.
constexpr int64_t kTile = 64;
constexpr int64_t kBackwardTile = kPanelDepth;

// Backward adds up blocks of tokens by themselves and then the blocks' sums in their order: as many blocks as keep
// processors busy, which depends on the tokens alone.
constexpr int64_t kMostBlocks = 16;

// Returns 1 / rms.
float normalise(const float* from, int64_t dim, float* to) {
  const float inverse = 1.0F / std::sqrt(dot(from, from, dim) / static_cast<float>(dim) + WriteGateArgs::kEpsilon);
  for (int64_t d = 0; d < dim; ++d) to[d] = from[d] * inverse;
  return inverse;
}

// Of one KV head the first two layers for up to `most` tokens.
class GateTile {
 public:
  GateTile(const WriteGateArgs& args, int64_t head, int64_t most)
      : args_(args), head_(head), x_(most * inputs()), a_(most * args.hidden), inverses_(most * 2) {}

  int64_t inputs() const { return int64_t{2} * args_.head_dim; }
  const float* weights() const { return args_.weights.as<float>() + head_ * args_.hidden * inputs(); }
  const float* bias() const { return args_.bias + head_ * args_.hidden; }
  const float* output_weights() const { return args_.output_weights + head_ * args_.hidden; }

  const float* x() const { return x_.data(); }                                         // [tokens, inputs]
  float* a() const { return a_.data(); }                                               // W1 x, [tokens, hidden]
  float inverse(int64_t i, int half) const { return inverses_.data()[2 * i + half]; }  // 1 / rms of either key

  void load(int64_t first, int64_t count) {
    const int64_t dim = args_.head_dim, hidden = args_.hidden;
    const float* keys[2] = {args_.pre_rope_keys.as<float>(), args_.keys.as<float>()};
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = ((first + i) * args_.kv_heads + head_) * dim;
      for (int half = 0; half < 2; ++half) {
        inverses_.data()[2 * i + half] = normalise(keys[half] + at, dim, x_.data() + i * inputs() + half * dim);
      }
    }
    gemm_nt(x(), count, inputs(), weights(), hidden, inputs(), inputs(), a(), hidden);
  }

 private:
  const WriteGateArgs& args_;
  int64_t head_;
  Scratch x_, a_, inverses_;
};

// Tokens [first, first + count) of one KV head.
void gate_tile(const WriteGateArgs& args, int64_t head, int64_t first, int64_t count) {
  const int64_t hidden = args.hidden;
  GateTile tile(args, head, count);
  tile.load(first, count);
  const float* bias = tile.bias();
  const float* output_weights = tile.output_weights();
  for (int64_t i = 0; i < count; ++i) {
    const float* a = tile.a() + i * hidden;
    const float y = args.output_bias[head] +
                    sum_of<float>(hidden, [=](int64_t h) { return output_weights[h] * gelu(a[h] + bias[h]); });
    const float gate = 1.0F / (1.0F + std::exp(-y));
    const int64_t at = (first + i) * args.kv_heads + head;
    args.gates[at] = gate;
    if (args.log_gates) args.log_gates[at] = std::log(std::max(gate, WriteGateArgs::kLeast));
  }
}

void check(const WriteGateArgs& args) {
  KV_CHECK(args.hidden > 0 && args.head_dim > 0 && args.head_dim <= args.kMostHeadDim && args.head_dim % 4 == 0);
}

// Sums over the tokens of a block, of one head.
struct Parameters {
  float* weights;         // [hidden, inputs]
  float* bias;            // [hidden]
  float* output_weights;  // [hidden]
  float* output_bias;

  static int64_t count(const WriteGateArgs& args) { return args.hidden * (int64_t{2} * args.head_dim + 2) + 1; }
  Parameters(const WriteGateArgs& args, float* from)
      : weights(from),
        bias(weights + int64_t{args.hidden} * 2 * args.head_dim),
        output_weights(bias + args.hidden),
        output_bias(output_weights + args.hidden) {}
};

float logit_gradient(const WriteGateBackwardArgs& args, int64_t at) {
  const float gate = args.forward.gates[at];
  float gradient = 0;
  if (args.log_gate_gradient && gate >= WriteGateArgs::kLeast) gradient += (1 - gate) * args.log_gate_gradient[at];
  if (args.gate_gradient) gradient += gate * (1 - gate) * args.gate_gradient[at];
  return gradient;
}

// One head's share of a block of tokens.
class BackwardBlock {
 public:
  BackwardBlock(const WriteGateBackwardArgs& args, int64_t head, float* sums)
      : args_(args),
        head_(head),
        dim_(args.forward.head_dim),
        hidden_(args.forward.hidden),
        tile_(args.forward, head, kBackwardTile),
        by_unit_(hidden_ * kBackwardTile),
        x_gradient_(kBackwardTile * dim_),
        sums_(args.forward, sums) {
    std::fill_n(sums, Parameters::count(args.forward), 0.0F);
  }

  void add(int64_t first, int64_t count) {
    tile_.load(first, count);
    for (int64_t i = 0; i < count; ++i) add_token(first + i, tile_.a() + i * hidden_);
    // From here on tile_.a() is the loss's slope.
    transpose(tile_.a(), count, hidden_, hidden_, by_unit_.data(), kBackwardTile);
    gemm_nn(by_unit_.data(), hidden_, kBackwardTile, tile_.x(), tile_.inputs(), tile_.inputs(), count, sums_.weights,
            tile_.inputs(), 1.0F, Write::kAdd);
    add_to_keys(0, first, count, args_.pre_rope_key_gradient);
    add_to_keys(1, first, count, args_.key_gradient);
  }

 private:
  void add_token(int64_t token, float* a) {
    const float slope = logit_gradient(args_, token * args_.forward.kv_heads + head_);
    const float* bias = tile_.bias();
    const float* output_weights = tile_.output_weights();
    float* to_bias = sums_.bias;
    float* to_output = sums_.output_weights;
#pragma omp simd
    for (int64_t h = 0; h < hidden_; ++h) {
      const float at = a[h] + bias[h];
      const Normal normal = normal_at(at);
      const float unit = slope * output_weights[h] * gelu_slope(at, normal);
      to_output[h] += slope * (at * normal.below);
      to_bias[h] += unit;
      a[h] = unit;
    }
    *sums_.output_bias += slope;
  }

  void add_to_keys(int half, int64_t first, int64_t count, const Ref& gradient) {
    if (!gradient) return;
    gemm_nn(tile_.a(), count, hidden_, tile_.weights() + half * dim_, dim_, tile_.inputs(), hidden_, x_gradient_.data(),
            dim_);
    for (int64_t i = 0; i < count; ++i) {
      const float* x = tile_.x() + i * tile_.inputs() + half * dim_;
      const float* dx = x_gradient_.data() + i * dim_;
      float* to = gradient.as<float>() + ((first + i) * args_.forward.kv_heads + head_) * dim_;
      const float along = dot(dx, x, dim_) / static_cast<float>(dim_), inverse = tile_.inverse(i, half);
      for (int64_t d = 0; d < dim_; ++d) to[d] += inverse * (dx[d] - along * x[d]);
    }
  }

  const WriteGateBackwardArgs& args_;
  int64_t head_, dim_, hidden_;
  GateTile tile_;
  Scratch by_unit_, x_gradient_;
  Parameters sums_;
};

// A head's unit: what its parameters get of all blocks, whose sums lie `stride` apart.
void add_blocks(const WriteGateBackwardArgs& args, int64_t head, int64_t unit, float* sums, int64_t blocks,
                int64_t stride) {
  const int64_t inputs = int64_t{2} * args.forward.head_dim, at = head * args.forward.hidden + unit;
  for (int64_t block = 0; block < blocks; ++block) {
    const Parameters of(args.forward, sums + block * stride);
    for (int64_t i = 0; i < inputs; ++i) args.weight_gradient[at * inputs + i] += of.weights[unit * inputs + i];
    args.bias_gradient[at] += of.bias[unit];
    args.output_weight_gradient[at] += of.output_weights[unit];
    if (unit == 0) args.output_bias_gradient[head] += *of.output_bias;
  }
}

}  // namespace

void write_gate(const WriteGateArgs& args) {
  check(args);
  const int64_t tiles = (args.tokens + kTile - 1) / kTile, tasks = tiles * args.kv_heads;
  parallel_for(args.layers * tasks, [&](int64_t task) {
    const int64_t first = task % tasks / args.kv_heads * kTile;
    gate_tile(of_layer<float>(args, static_cast<int>(task / tasks)), task % args.kv_heads, first,
              std::min(kTile, args.tokens - first));
  });
}

void write_gate_backward(const WriteGateBackwardArgs& args) {
  const WriteGateArgs& forward = args.forward;
  check(forward);
  KV_CHECK(forward.layers == 1);
  if (forward.tokens == 0 || (!args.log_gate_gradient && !args.gate_gradient)) return;
  const int64_t heads = forward.kv_heads, tokens = forward.tokens;
  const int64_t block_tokens = round_up((tokens + kMostBlocks - 1) / kMostBlocks, kBackwardTile);
  const int64_t blocks = (tokens + block_tokens - 1) / block_tokens;
  const int64_t parameters = round_up(Parameters::count(forward), 16);  // no two blocks write to one cache line
  const Scratch sums(blocks * heads * parameters);
  parallel_for(blocks * heads, [&](int64_t task) {
    BackwardBlock block(args, task % heads, sums.data() + task * parameters);
    const int64_t begin = task / heads * block_tokens, end = std::min(tokens, begin + block_tokens);
    for (int64_t first = begin; first < end; first += kBackwardTile) {
      block.add(first, std::min(kBackwardTile, end - first));
    }
  });
  parallel_for(heads * forward.hidden, [&](int64_t task) {
    const int64_t head = task / forward.hidden;
    add_blocks(args, head, task % forward.hidden, sums.data() + head * parameters, blocks, heads * parameters);
  });
}

}  // namespace kv::cpu
