#include "kernels/retention_gate.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

// Tokens whose hidden layers are in memory at once, and the tokens and units of a task. Every product is a chain in the
// order of its depth (kernels/cpu/panel.h), so that a token's gate does not depend on those beside it.
constexpr int64_t kChunk = 1024;
constexpr int64_t kTokens = 64;
constexpr int64_t kUnits = 64;

int64_t blocks_of(int64_t count, int64_t block) { return (count + block - 1) / block; }

// e^−|x| cannot overflow: silu(x) = x · e^x / (1 + e^x) on the negative side.
float silu(float x) {
  const float e = fast_exp(-std::abs(x));
  return x * ((x < 0 ? e : 1.0F) / (1.0F + e));
}

float silu_slope(float x) {
  const float e = fast_exp(-std::abs(x));
  const float above = (x < 0 ? e : 1.0F) / (1.0F + e);  // σ(x)
  const float below = (x < 0 ? 1.0F : e) / (1.0F + e);  // σ(−x), without the loss that 1 − σ(x) would have
  return above * (1.0F + x * below);
}

// log σ(z); log1p keeps it apart from 0 where σ(z) itself would round to 1.
float log_sigmoid(float z) { return std::min(z, 0.0F) - std::log1p(std::exp(-std::abs(z))); }

void silu_all(const float* from, int64_t count, float* to) {
  parallel_blocks(count, 16384, [&](int64_t first, int64_t end) {
#pragma omp simd
    for (int64_t i = first; i < end; ++i) to[i] = silu(from[i]);
  });
}

void scale_by_slope(const float* from, int64_t count, float* gradient) {
  parallel_blocks(count, 16384, [&](int64_t first, int64_t end) {
#pragma omp simd
    for (int64_t i = first; i < end; ++i) gradient[i] *= silu_slope(from[i]);
  });
}

// A layer of `units` units that reads `in` numbers a token.
struct Layer {
  const float* weights;  // [units, in]
  const float* bias;     // [units]
  int64_t in, units;

  // output[tokens, units] = x[tokens, in] · weightsᵀ + bias
  void forward(const float* x, int64_t tokens, float* output) const {
    const int64_t unit_blocks = blocks_of(units, kUnits);
    parallel_for(blocks_of(tokens, kTokens) * unit_blocks, [&](int64_t task) {
      const int64_t token = task / unit_blocks * kTokens, unit = task % unit_blocks * kUnits;
      const int64_t rows = std::min(kTokens, tokens - token), columns = std::min(kUnits, units - unit);
      float* block = output + token * units + unit;
      gemm_nt(x + token * in, rows, in, weights + unit * in, columns, in, in, block, units);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t u = 0; u < columns; ++u) block[r * units + u] += bias[unit + u];
      }
    });
  }

  // x_gradient[tokens, in] (+)= gradient[tokens, units] · weights
  void backward(const float* gradient, int64_t tokens, float* x_gradient, Write write) const {
    const int64_t in_blocks = blocks_of(in, 4 * kUnits);
    parallel_for(blocks_of(tokens, kTokens) * in_blocks, [&](int64_t task) {
      const int64_t token = task / in_blocks * kTokens, column = task % in_blocks * 4 * kUnits;
      gemm_nn(gradient + token * units, std::min(kTokens, tokens - token), units, weights + column,
              std::min(4 * kUnits, in - column), in, units, x_gradient + token * in + column, in, 1.0F, write);
    });
  }

  // weight_gradient[units, in] += gradientᵀ · x, bias_gradient[units] += Σ gradient. A task has whole units, so that
  // sums over tokens are the same however many threads there are.
  void add_gradients(const float* gradient, const float* x, int64_t tokens, float* weight_gradient,
                     float* bias_gradient) const {
    parallel_blocks(units, kUnits, [&](int64_t first, int64_t end) {
      const Scratch by_unit((end - first) * tokens);
      transpose(gradient + first, tokens, end - first, units, by_unit.data(), tokens);
      gemm_nn(by_unit.data(), end - first, tokens, x, in, in, tokens, weight_gradient + first * in, in, 1.0F,
              Write::kAdd);
      for (int64_t u = first; u < end; ++u) {
        const float* of_unit = by_unit.data() + (u - first) * tokens;
        bias_gradient[u] += sum_of<float>(tokens, [=](int64_t i) { return of_unit[i]; });
      }
    });
  }
};

// The op over tokens [first, first + tokens), at most kChunk.
class Chunk {
 public:
  Chunk(const RetentionGateArgs& args, int64_t first, int64_t tokens)
      : args_(args),
        first_(first),
        tokens_(tokens),
        inputs_(args.inputs.as<float>() + first * args.width),
        first_layer_{args.input_weights.as<float>(), args.input_bias, args.width, args.hidden},
        first_sums_(tokens * args.hidden),
        first_output_(tokens * args.hidden) {
    first_layer_.forward(inputs_, tokens, first_sums_.data());
    silu_all(first_sums_.data(), tokens * args.hidden, first_output_.data());
    if (!is_deep()) return;
    second_layer_ = {args.hidden_weights.as<float>(), args.hidden_bias, args.hidden, stride()};
    second_sums_ = Scratch(tokens * stride());
    second_output_ = Scratch(tokens * stride());
    second_layer_.forward(first_output_.data(), tokens, second_sums_.data());
    silu_all(second_sums_.data(), tokens * stride(), second_output_.data());
  }

  void write_log_retention() const {
    parallel_blocks(tokens_, kTokens, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t head = 0; head < args_.kv_heads; ++head) {
          const float z = dot(args_.output_weights + head * args_.hidden, embedding(i, head), args_.hidden);
          args_.log_retention[(first_ + i) * args_.kv_heads + head] = log_sigmoid(z + args_.output_bias[head]);
        }
      }
    });
  }

  void add_gradients(const RetentionGateBackwardArgs& to) const {
    const Scratch logits = logit_gradients(to);  // [kv_heads, tokens]
    add_output_gradients(to, logits.data());
    Scratch gradient = embedding_gradients(logits.data());
    if (is_deep()) {
      scale_by_slope(second_sums_.data(), tokens_ * stride(), gradient.data());
      second_layer_.add_gradients(gradient.data(), first_output_.data(), tokens_, to.hidden_weight_gradient,
                                  to.hidden_bias_gradient);
      Scratch of_first(tokens_ * args_.hidden);
      second_layer_.backward(gradient.data(), tokens_, of_first.data(), Write::kReplace);
      gradient = std::move(of_first);
    }
    scale_by_slope(first_sums_.data(), tokens_ * args_.hidden, gradient.data());
    first_layer_.add_gradients(gradient.data(), inputs_, tokens_, to.input_weight_gradient, to.input_bias_gradient);
    if (to.input_gradient) {
      first_layer_.backward(gradient.data(), tokens_, to.input_gradient.as<float>() + first_ * args_.width,
                            Write::kAdd);
    }
  }

 private:
  bool is_deep() const { return static_cast<bool>(args_.hidden_weights); }
  // Of the embeddings of a token, [embeddings, hidden].
  int64_t stride() const { return int64_t{args_.embeddings} * args_.hidden; }
  int64_t embedding_offset(int64_t head) const { return args_.embeddings == 1 ? 0 : head * args_.hidden; }
  const float* embeddings() const { return is_deep() ? second_output_.data() : first_output_.data(); }
  const float* embedding(int64_t i, int64_t head) const { return embeddings() + i * stride() + embedding_offset(head); }

  Scratch logit_gradients(const RetentionGateBackwardArgs& to) const {
    Scratch gradients(args_.kv_heads * tokens_);
    parallel_for(args_.kv_heads, [&](int64_t head) {
      float* of_head = gradients.data() + head * tokens_;
      for (int64_t i = 0; i < tokens_; ++i) {
        const int64_t at = (first_ + i) * args_.kv_heads + head;
        const float other = to.other_gradient ? to.other_gradient[at] : 0;
        of_head[i] = -std::expm1(args_.log_retention[at]) * (to.log_retention_gradient[at] + other);
      }
    });
    return gradients;
  }

  void add_output_gradients(const RetentionGateBackwardArgs& to, const float* logits) const {
    parallel_for(args_.kv_heads, [&](int64_t head) {
      const float* of_head = logits + head * tokens_;
      gemm_nn(of_head, 1, tokens_, embeddings() + embedding_offset(head), args_.hidden, stride(), tokens_,
              to.output_weight_gradient + head * args_.hidden, args_.hidden, 1.0F, Write::kAdd);
      to.output_bias_gradient[head] += sum_of<float>(tokens_, [=](int64_t i) { return of_head[i]; });
    });
  }

  // [tokens, embeddings, hidden]
  Scratch embedding_gradients(const float* logits) const {
    Scratch gradients(tokens_ * stride());
    parallel_blocks(tokens_, kTokens, [&](int64_t begin, int64_t end) {
      std::fill(gradients.data() + begin * stride(), gradients.data() + end * stride(), 0.0F);
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t head = 0; head < args_.kv_heads; ++head) {
          float* to = gradients.data() + i * stride() + embedding_offset(head);
          const float* weights = args_.output_weights + head * args_.hidden;
          const float by = logits[head * tokens_ + i];
          for (int64_t u = 0; u < args_.hidden; ++u) to[u] += by * weights[u];
        }
      }
    });
    return gradients;
  }

  const RetentionGateArgs& args_;
  int64_t first_, tokens_;
  const float* inputs_;
  Layer first_layer_, second_layer_{};
  Scratch first_sums_, first_output_;    // [tokens, hidden], before and after SiLU
  Scratch second_sums_, second_output_;  // [tokens, embeddings, hidden]; with W2
};

template <class Visit>
void for_chunks(const RetentionGateArgs& args, const Visit& visit) {
  KV_CHECK(args.hidden > 0 && args.width > 0 && args.kv_heads > 0);
  KV_CHECK(args.embeddings == 1 || (args.hidden_weights && args.embeddings == args.kv_heads));
  for (int64_t first = 0; first < args.tokens; first += kChunk) {
    visit(Chunk(args, first, std::min(kChunk, args.tokens - first)));
  }
}

}  // namespace

void retention_gate(const RetentionGateArgs& args) {
  for_chunks(args, [](const Chunk& chunk) { chunk.write_log_retention(); });
}

void retention_gate_backward(const RetentionGateBackwardArgs& args) {
  for_chunks(args.forward, [&](const Chunk& chunk) { chunk.add_gradients(args); });
}

}  // namespace kv::cpu
