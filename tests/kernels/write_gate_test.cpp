#include "kernels/write_gate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ref/write_gate.h"
#include "tests/support/backends.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, WriteGate);

struct Shape {
  int64_t tokens;
  int kv_heads;
  int head_dim;
  int hidden;
};
// Tokens that fill tiles and do not, few and many; hidden units of no round number.
const std::vector<Shape> kShapes = {{1, 1, 16, 8},    {17, 3, 16, 24},   {64, 2, 64, 96},   {130, 2, 64, 97},
                                    {3, 8, 128, 192}, {70, 2, 128, 65},  {1100, 1, 32, 48}, {1025, 2, 128, 70},
                                    {257, 2, 16, 30}, {256, 1, 128, 64}, {260, 2, 64, 200}, {300, 1, 20, 40},
                                    {5, 2, 100, 70}};

std::vector<double> doubles(const std::vector<float>& values, int64_t first, int64_t count) {
  return {values.begin() + first, values.begin() + first + count};
}

// Random keys of very different lengths, which norms take away, and weights that leave the gates all over [0, 1].
struct Problem {
  Problem(Backend& backend, const Shape& of) : shape(of) {
    const size_t keys_count = static_cast<size_t>(of.tokens * of.kv_heads * of.head_dim);
    const size_t units = static_cast<size_t>(of.kv_heads) * of.hidden;
    pre_rope_keys = ref::random_values(keys_count, 1);
    keys = ref::random_values(keys_count, 2);
    for (size_t i = 0; i < keys_count; ++i) {
      const auto token = static_cast<int64_t>(i) / (of.kv_heads * of.head_dim);
      pre_rope_keys[i] *= token % 3 == 0 ? 20.0F : 0.5F;
      keys[i] *= token % 5 == 0 ? 0.01F : 3.0F;
    }
    weights = ref::random_values(units * 2 * of.head_dim, 3);
    for (float& weight : weights) weight /= std::sqrt(static_cast<float>(of.head_dim));
    bias = ref::random_values(units, 4);
    output_weights = ref::random_values(units, 5);
    output_bias = ref::random_values(static_cast<size_t>(of.kv_heads), 6);
    pre_rope_keys = ref::rounded(backend, pre_rope_keys);
    keys = ref::rounded(backend, keys);
    weights = ref::rounded(backend, weights);
  }

  std::vector<float> run(Backend& backend) const {
    const Tensor on_pre = ref::upload_activations(backend, pre_rope_keys),
                 on_keys = ref::upload_activations(backend, keys);
    const Tensor on_weights = ref::upload_activations(backend, weights);
    Tensor on_bias = ref::upload_array(backend, bias), on_output = ref::upload_array(backend, output_weights);
    Tensor on_output_bias = ref::upload_array(backend, output_bias);
    Tensor gates =
        ref::upload_array(backend, std::vector<float>(static_cast<size_t>(shape.tokens * shape.kv_heads) + 3, -7));
    backend.write_gate({.pre_rope_keys = on_pre.ref(),
                        .keys = on_keys.ref(),
                        .tokens = shape.tokens,
                        .kv_heads = shape.kv_heads,
                        .head_dim = shape.head_dim,
                        .hidden = shape.hidden,
                        .weights = on_weights.ref(),
                        .bias = ref::data_of<float>(on_bias),
                        .output_weights = ref::data_of<float>(on_output),
                        .output_bias = ref::data_of<float>(on_output_bias),
                        .gates = ref::data_of<float>(gates)});
    return ref::download_array<float>(gates);
  }

  double want(const Backend& backend, int64_t token, int64_t head) const {
    const int64_t key = (token * shape.kv_heads + head) * shape.head_dim, unit = head * shape.hidden;
    const int64_t inputs = 2 * shape.head_dim;
    return ref::write_gate(doubles(pre_rope_keys, key, shape.head_dim), doubles(keys, key, shape.head_dim),
                           doubles(weights, unit * inputs, shape.hidden * inputs), doubles(bias, unit, shape.hidden),
                           doubles(output_weights, unit, shape.hidden), output_bias[static_cast<size_t>(head)],
                           [&](double x) -> double { return ref::rounded(backend, {static_cast<float>(x)})[0]; });
  }

  Shape shape;
  std::vector<float> pre_rope_keys, keys, weights, bias, output_weights, output_bias;
};

// The roundings of a unit's 2 head_dim products, of weights up to 1/√head_dim and x of about 1, add up like steps of a
// walk to about √2, and the units' again; a gate moves by at most a quarter of what its logit does. Eight times the
// walk is seldom met. Where x is rounded to 16 bits a value may fall to the other side, which every unit sees: a
// weight's share of its last place, again a walk, four times.
double allowed(const Backend& backend, const Shape& shape) {
  const double products = 0.25 * 8 * std::sqrt(2.0 * shape.hidden) * 4 * std::numeric_limits<float>::epsilon();
  if (backend.activation_type() == DType::kF32) return products;
  return products +
         0.25 * 4 * std::sqrt(static_cast<double>(shape.hidden) / shape.head_dim) * ref::activation_epsilon(backend);
}

TEST_P(WriteGate, AgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(::testing::Message() << shape.tokens << " tokens, " << shape.kv_heads << " heads, dim "
                                      << shape.head_dim << ", " << shape.hidden << " units");
    const Problem problem(*backend, shape);
    const std::vector<float> got = problem.run(*backend);
    double lowest = 1, highest = 0;
    for (int64_t token = 0; token < shape.tokens; ++token) {
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        const double want = problem.want(*backend, token, head);
        ASSERT_NEAR(got[static_cast<size_t>(token * shape.kv_heads + head)], want, allowed(*backend, shape))
            << "token " << token << ", head " << head;
        lowest = std::min(lowest, want), highest = std::max(highest, want);
      }
    }
    if (shape.tokens > 16) {
      EXPECT_GT(highest - lowest, 20 * allowed(*backend, shape)) << "nothing is told apart";
    }
    for (size_t i = got.size() - 3; i < got.size(); ++i) EXPECT_EQ(got[i], -7);
  }
}

// A gate is its token's own: neither those before it in the block nor how many there are change a bit.
TEST_P(WriteGate, DoesNotDependOnTheBlock) {
  KV_BACKEND_OR_SKIP(backend);
  const Problem many(*backend, {1100, 2, 64, 97});
  const std::vector<float> all = many.run(*backend);
  for (const int64_t tokens : {1, 17, 255, 256, 863}) {
    SCOPED_TRACE(tokens);
    Problem late = many;
    const int64_t first = many.shape.tokens - tokens, token = 2 * 64;
    for (std::vector<float>* keys : {&late.keys, &late.pre_rope_keys}) {
      keys->erase(keys->begin(), keys->begin() + first * token);
    }
    late.shape.tokens = tokens;
    EXPECT_EQ(ref::slice(all, first * 2, tokens * 2), ref::slice(late.run(*backend), 0, tokens * 2));
  }
}

TEST_P(WriteGate, NoTokensWriteNothing) {
  KV_BACKEND_OR_SKIP(backend);
  const Problem problem(*backend, {0, 2, 16, 8});
  EXPECT_EQ(problem.run(*backend), std::vector<float>(3, -7));
}

TEST(WriteGateOnThreads, GivesTheSameBits) {
  const auto backend = make_backend("cpu");
  const Problem problem(*backend, {130, 3, 64, 97});
  const auto on_threads = [&](int count) {
    const ref::Threads threads(count);
    return problem.run(*backend);
  };
  EXPECT_EQ(on_threads(1), on_threads(3));
}

}  // namespace
}  // namespace kv
