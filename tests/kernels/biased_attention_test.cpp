#include "kernels/biased_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ref/biased_attention.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, BiasedAttention);

using Form = KeyBias::Form;

struct Shape {
  int kv_heads;
  int group;
  int head_dim;
  std::vector<int32_t> counts;
  float query_size = 1;
};

struct Bias {
  Form form = Form::kNone;
  int window = 0;
  int far_keys = std::numeric_limits<int>::max();  // keys from there on have −∞
};
const std::vector<Bias> kBiases = {
    {}, {Form::kOutsideWindow, 1}, {Form::kOutsideWindow, 20}, {Form::kOutsideWindow, 1000}, {Form::kDistance}};

// Sequences packed in reverse order, with tokens between them that are of none: NaN, and to be left alone.
struct Problem {
  Problem(const Backend& backend, const Shape& shape, const Bias& of)
      : bias(of),
        kv_heads(shape.kv_heads),
        q_heads(shape.kv_heads * shape.group),
        head_dim(shape.head_dim),
        scale(1 / std::sqrt(static_cast<float>(shape.head_dim))) {
    tokens = 3;
    for (auto count = shape.counts.rbegin(); count != shape.counts.rend(); ++count) {
      segments.push_back({static_cast<int32_t>(shape.counts.rend() - count) - 1, tokens, *count, 0});
      tokens += *count + 2;
    }
    queries = vectors(backend, q_heads, 1, shape.query_size);
    keys = vectors(backend, kv_heads, 2, 1);
    values = vectors(backend, kv_heads, 3, 1);
    output_gradient = vectors(backend, q_heads, 4, 1);
    if (bias.form == Form::kNone) return;
    biases = ref::random_values(static_cast<size_t>(tokens * kv_heads), 5);
    for (size_t at = 0; at < biases.size(); ++at) {
      // Gates between e^-7 and 1; retention of 0.9 and more, and now and then of less.
      const float largest = bias.form == Form::kOutsideWindow ? 3.5F : at % 7 == 0 ? 1.5F : 0.05F;
      biases[at] = largest * (biases[at] - 1);
    }
    for (const Segment& segment : segments) {
      for (int key = bias.far_keys; key < segment.count; ++key) {
        std::fill_n(biases.begin() + int64_t{segment.first_token + key} * kv_heads, kv_heads, -INFINITY);
      }
    }
    spoil_others(biases, kv_heads);
  }

  std::vector<float> vectors(const Backend& backend, int heads, uint32_t seed, float size) const {
    std::vector<float> all = ref::random_values(static_cast<size_t>(tokens * heads * head_dim), seed);
    for (float& value : all) value *= size;
    all = ref::rounded(backend, all);
    spoil_others(all, heads * head_dim);
    return all;
  }
  void spoil_others(std::vector<float>& all, int width) const {
    for (int32_t token = 0; token < tokens; ++token) {
      const bool is_of_one = std::any_of(segments.begin(), segments.end(), [&](const Segment& s) {
        return token >= s.first_token && token < s.first_token + s.count;
      });
      if (!is_of_one) std::fill_n(all.begin() + int64_t{token} * width, width, NAN);
    }
  }

  int32_t max_count() const {
    int32_t largest = 0;
    for (const Segment& segment : segments) largest = std::max(largest, segment.count);
    return largest;
  }
  ref::BiasedProblem in_double() const {
    const auto doubles = [](const std::vector<float>& v) { return std::vector<double>(v.begin(), v.end()); };
    return {.queries = doubles(queries),
            .keys = doubles(keys),
            .values = doubles(values),
            .biases = doubles(biases),
            .form = bias.form,
            .window = bias.window,
            .segments = segments,
            .q_heads = q_heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .scale = scale};
  }
  std::vector<double> output_gradient_in_double() const { return {output_gradient.begin(), output_gradient.end()}; }

  Bias bias;
  int kv_heads, q_heads, head_dim;
  float scale;
  int32_t tokens = 0;
  std::vector<Segment> segments;
  std::vector<float> queries, keys, values, biases, output_gradient;
};

struct Result {
  std::vector<float> output, log_sums, query_gradient, key_gradient, value_gradient, bias_gradient;
};

struct Asked {
  bool of_bias_alone = false;
  bool deterministic = true;
};

Result run(Backend& backend, const Problem& problem, const Asked& asked = {}) {
  const DType type = backend.activation_type();
  const Tensor queries = ref::upload_activations(backend, problem.queries);
  const Tensor keys = ref::upload_activations(backend, problem.keys);
  const Tensor values = ref::upload_activations(backend, problem.values);
  const Tensor output_gradient = ref::upload_activations(backend, problem.output_gradient);
  Tensor biases = ref::upload_array(backend, problem.biases),
         segments = ref::upload_segments(backend, problem.segments);
  Tensor output(backend, type, queries.elements()), log_sums(backend, DType::kF32, problem.tokens * problem.q_heads);
  Tensor query_gradient(backend, type, queries.elements()), key_gradient(backend, type, keys.elements());
  Tensor value_gradient(backend, type, keys.elements()), bias_gradient(backend, DType::kF32, biases.elements());
  const bool has_bias = problem.bias.form != Form::kNone;
  const PackedAttention attention{.queries = queries.ref(),
                                  .keys = keys.ref(),
                                  .values = values.ref(),
                                  .bias = {.form = problem.bias.form,
                                           .window = problem.bias.window,
                                           .values = has_bias ? ref::data_of<float>(biases) : nullptr,
                                           .far_keys = problem.bias.far_keys},
                                  .segments = ref::segments_of(segments),
                                  .segment_count = std::ssize(problem.segments),
                                  .max_count = problem.max_count(),
                                  .tokens = problem.tokens,
                                  .q_heads = problem.q_heads,
                                  .kv_heads = problem.kv_heads,
                                  .head_dim = problem.head_dim,
                                  .scale = problem.scale};
  backend.biased_attention({.attention = attention, .output = output.ref(), .log_sums = ref::data_of<float>(log_sums)});
  backend.biased_attention_backward({.attention = attention,
                                     .output = output.ref(),
                                     .log_sums = ref::data_of<float>(log_sums),
                                     .output_gradient = output_gradient.ref(),
                                     .query_gradient = asked.of_bias_alone ? Ref() : query_gradient.ref(),
                                     .key_gradient = asked.of_bias_alone ? Ref() : key_gradient.ref(),
                                     .value_gradient = asked.of_bias_alone ? Ref() : value_gradient.ref(),
                                     .bias_gradient = has_bias ? ref::data_of<float>(bias_gradient) : nullptr,
                                     .deterministic = asked.deterministic});
  backend.synchronize();
  return {ref::download_activations(output),         ref::download_array<float>(log_sums),
          ref::download_activations(query_gradient), ref::download_activations(key_gradient),
          ref::download_activations(value_gradient), ref::download_array<float>(bias_gradient)};
}

// All results behind each other. Untouched places are NaN, which equals nothing: −1 there.
std::vector<float> bits_of(const Result& result) {
  std::vector<float> all;
  for (const auto* part : {&result.output, &result.log_sums, &result.query_gradient, &result.key_gradient,
                           &result.value_gradient, &result.bias_gradient}) {
    for (const float value : *part) all.push_back(std::isnan(value) ? -1 : value);
  }
  return all;
}

// In order, and in any.
void expect_reference(Backend& backend, const Problem& problem) {
  const ref::BiasedAttention want = ref::biased_attention(problem.in_double(), problem.output_gradient_in_double());
  const double seen = problem.max_count(), seeing = seen * problem.q_heads / problem.kv_heads;
  for (const bool deterministic : {true, false}) {
    const Result got = run(backend, problem, {.deterministic = deterministic});
    const auto expect = [&](const char* name, const std::vector<float>& values, const ref::Sums& sums, double chain) {
      EXPECT_TRUE(ref::are_close(backend, values, sums, chain)) << name << (deterministic ? "" : ", in any order");
    };
    expect("output", got.output, want.output, seen);
    expect("log_sums", got.log_sums, want.log_sums, 0);
    expect("query_gradient", got.query_gradient, want.query_gradient, seen);
    expect("key_gradient", got.key_gradient, want.key_gradient, seeing);
    expect("value_gradient", got.value_gradient, want.value_gradient, seeing);
    expect("bias_gradient", got.bias_gradient, want.bias_gradient, seeing);
  }
}

std::vector<Shape> shapes(const Backend& backend) {
  std::vector<Shape> all = {
      {1, 1, 16, {1}},
      {2, 1, 16, {2, 0, 3}},        // an empty sequence
      {1, 4, 64, {31, 32, 33}},     // around a panel
      {2, 5, 128, {63, 64, 65}},    // around a GPU's tiles
      {1, 1, 64, {127, 128, 129}},  // around the host's tiles
      {2, 4, 64, {300}},            // several tiles, and shares of them
      {1, 5, 16, {257, 100, 1}},
      {1, 4, 128, {290, 20}},
      {1, 3, 64, {191, 192, 193}},      // around what a block of Hopper's owns
      {2, 2, 128, {127, 0, 129, 256}},  // the same, and nothing but whole tiles
      {1, 1, 128, {600, 1}},            // more steps than its rings have places
      {1, 2, 48, {130}},                // heads that Hopper's kernels leave to others
      {1, 2, 80, {130, 50}},            // heads that are no whole panels
      {1, 3, 20, {70}},                 // nor whole pieces of 16 bytes
      {1, 2, 64, {200}, 30},            // sharp: maxima rise from tile to tile, probabilities vanish
  };
  // So many sequences of several tiles that on Hopper a block has the keys of all heads of a group; of groups with less
  // to do each head has one.
  if (backend.name() == "cuda") {
    for (const int dim : {64, 128}) all.push_back({4, 2, dim, std::vector<int32_t>(13, 130)});
  }
  return all;
}

TEST_P(BiasedAttention, AgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : shapes(*backend)) {
    for (const Bias& bias : kBiases) {
      SCOPED_TRACE(::testing::Message() << shape.kv_heads << " heads, group " << shape.group << ", dim "
                                        << shape.head_dim << ", first count " << shape.counts[0] << ", form "
                                        << static_cast<int>(bias.form) << ", window " << bias.window);
      const Problem problem(*backend, shape, bias);
      expect_reference(*backend, problem);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// As DuoAttention's first tokens and window have it: between both lie tiles that may be passed over.
TEST_P(BiasedAttention, PassesOverWhatNobodySees) {
  KV_BACKEND_OR_SKIP(backend);
  std::vector<Shape> unlike = {{1, 2, 64, {520, 129, 1}}, {1, 2, 128, {400, 257}}, {1, 1, 48, {300}}};
  if (backend->name() == "cuda") {  // where on Hopper a block has the keys of all heads of a group
    for (const int dim : {64, 128}) unlike.push_back({4, 2, dim, std::vector<int32_t>(13, 300)});
  }
  for (const Shape& shape : unlike) {
    for (const Bias& bias : {Bias{Form::kOutsideWindow, 1, 0},
                             {Form::kOutsideWindow, 20, 4},
                             {Form::kOutsideWindow, 64, 130},
                             {Form::kOutsideWindow, 200, 16},
                             {Form::kOutsideWindow, 1000, 4},
                             {Form::kOutsideWindow, std::numeric_limits<int>::max(), 4}}) {
      SCOPED_TRACE(::testing::Message() << "dim " << shape.head_dim << ", window " << bias.window << ", "
                                        << bias.far_keys << " far keys");
      Problem problem(*backend, shape, bias);
      expect_reference(*backend, problem);
      Result got = run(*backend, problem);
      problem.bias.far_keys = std::numeric_limits<int>::max();
      Result all = run(*backend, problem);
      for (Result* result : {&got, &all}) {  // heads of keys may be added up in another order
        for (auto* sums : {&result->key_gradient, &result->value_gradient, &result->bias_gradient}) sums->clear();
      }
      EXPECT_EQ(bits_of(got), bits_of(all));
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Central differences of the double-precision output, weighed by its gradient, at some places of each operand.
TEST_P(BiasedAttention, BackwardIsTheSlopeOfTheReference) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Bias& bias : kBiases) {
    const Problem problem(*backend, {2, 2, 16, {37, 9}}, bias);
    const Result got = run(*backend, problem);
    const std::vector<double> output_gradient = problem.output_gradient_in_double();
    ref::BiasedProblem moved = problem.in_double();
    const ref::BiasedAttention sums = ref::biased_attention(moved, output_gradient);
    const auto expect_slopes = [&](const std::vector<float>& gradient, std::vector<double>& operand,
                                   const ref::Sums& bounds) {
      constexpr double kStep = 1e-5;
      for (size_t at = 0; at<operand.size(); at += operand.size()> 500 ? 29 : 1) {
        if (std::isnan(operand[at])) continue;
        const double here = operand[at];
        operand[at] = here + kStep;
        const double ahead = ref::biased_loss(moved, output_gradient);
        operand[at] = here - kStep;
        const double slope = (ahead - ref::biased_loss(moved, output_gradient)) / (2 * kStep);
        operand[at] = here;
        // As are_close() has it. Differences of a loss of about 100 over such a step are exact to 1e-8.
        const double magnitude = bounds.roundings[at] + (80 + ref::storage_roundings(*backend)) * bounds.magnitudes[at];
        ref::expect_close(gradient[at], slope, {.magnitude = magnitude + 1});
      }
    };
    expect_slopes(got.query_gradient, moved.queries, sums.query_gradient);
    expect_slopes(got.key_gradient, moved.keys, sums.key_gradient);
    expect_slopes(got.value_gradient, moved.values, sums.value_gradient);
    expect_slopes(got.bias_gradient, moved.biases, sums.bias_gradient);
  }
}

// Where nothing below the layer learns.
TEST_P(BiasedAttention, BiasesHaveTheSameGradientsWhereNobodyAsksForOthers) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<Shape> shapes = {
      {2, 4, 20, {150, 70, 300}},
      {2, 4, 64, {150, 70, 300}},
      {2, 4, 128, {150, 70, 300}},
      {4, 2, 64, std::vector<int32_t>(11, 130)},  // where on Hopper a block has the keys of all heads of a group
  };
  for (const Shape& shape : shapes) {
    for (const Bias& bias : kBiases) {
      const Problem problem(*backend, shape, bias);
      Result asked = run(*backend, problem);
      const Result got = run(*backend, problem, {.of_bias_alone = true});
      for (const auto* untouched : {&got.query_gradient, &got.key_gradient, &got.value_gradient}) {
        for (const float value : *untouched) ASSERT_TRUE(std::isnan(value));  // as memory begins
      }
      asked.query_gradient = got.query_gradient;
      asked.key_gradient = got.key_gradient;
      asked.value_gradient = got.value_gradient;
      EXPECT_EQ(bits_of(got), bits_of(asked));
    }
  }
}

// A query's logits may all move together, and nothing changes. So where the first value of all keys is one and the
// same, that of a query's gradient is that value times Σ_j ds_ij: nothing.
TEST_P(BiasedAttention, SlopesOfAQueryAddUpToNothing) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Bias& bias : kBiases) {
    Problem problem(*backend, {2, 3, 64, {150, 70}}, bias);
    for (size_t at = 0; at < problem.keys.size(); at += 64) {
      if (!std::isnan(problem.keys[at])) problem.keys[at] = 2;
    }
    const Result got = run(*backend, problem);
    const ref::Sums sums =
        ref::biased_attention(problem.in_double(), problem.output_gradient_in_double()).query_gradient;
    double largest = 0;
    for (size_t at = 0; at < got.query_gradient.size(); at += 64) {
      if (std::isnan(sums.values[at])) continue;
      const double magnitude = sums.roundings[at] + (150 + ref::storage_roundings(*backend)) * sums.magnitudes[at];
      ref::expect_close(got.query_gradient[at], 0, {.magnitude = magnitude});
      largest = std::max(largest, sums.magnitudes[at]);
    }
    EXPECT_GT(largest, 0.1);  // terms are there
  }
}

// Queries are 0, so logits are the biases: log 1/2 of key 0, and the second query's probabilities are 1/3 and 2/3. Its
// output's gradient is 1 in the first value, where values are 3 and 0: dp = (3, 0), D = 1, ds = 1/3 (3 − 1) = 2/3 and
// 2/3 (0 − 1).
TEST_P(BiasedAttention, OfTwoTokensIsAsOnPaper) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Bias& bias : {Bias{Form::kOutsideWindow, 1}, Bias{Form::kDistance}}) {
    Problem problem(*backend, {1, 1, 16, {2}}, bias);
    const int first = problem.segments[0].first_token, at = first * 16;
    for (auto* vectors : {&problem.queries, &problem.keys, &problem.values, &problem.output_gradient}) {
      std::fill_n(vectors->begin() + at, 32, 0.0F);
    }
    problem.keys[at] = 6;
    problem.values[at] = 3;
    problem.output_gradient[at + 16] = 1;
    problem.biases[first] = std::log(0.5F);
    const Result got = run(*backend, problem);
    const double roundings = 4 + ref::storage_roundings(*backend);
    ref::expect_close(ref::slice(got.log_sums, first, 2), std::vector<double>{0, std::log(1.5)}, {.roundings = 4});
    ref::expect_close(got.output[at + 16], 1, {.roundings = roundings});
    ref::expect_close(got.value_gradient[at], 1.0 / 3, {.roundings = roundings});
    ref::expect_close(got.value_gradient[at + 16], 2.0 / 3, {.roundings = roundings});
    ref::expect_close(ref::slice(got.bias_gradient, first, 2), std::vector<double>{2.0 / 3, 0},
                      {.roundings = roundings});
    // scale = 1/4, and only the first key is not 0; queries are.
    ref::expect_close(got.query_gradient[at + 16], 1.0, {.roundings = roundings});
    EXPECT_EQ(ref::slice(got.key_gradient, at, 32), std::vector<float>(32));
  }
}

TEST_P(BiasedAttention, AKeyOfLowestBiasHasNoWeightWhereItCounts) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr float kLowest = std::numeric_limits<float>::lowest(), kNothing = -std::numeric_limits<float>::infinity();
  for (const float low : {-1e4F, -1e30F, kLowest, kNothing}) {
    for (const Bias& bias : {Bias{Form::kOutsideWindow, 1}, Bias{Form::kOutsideWindow, 20}, Bias{Form::kDistance}}) {
      for (const int head_dim : {64, 128}) {
        SCOPED_TRACE(::testing::Message() << low << ", window " << bias.window << ", dim " << head_dim);
        Problem problem(*backend, {1, 2, head_dim, {300, 40}}, bias);
        // Whole tiles of them, the first one's too: sums begin with nothing.
        const Segment& segment = problem.segments[1];
        for (int32_t j = 0; j < segment.count; ++j) {
          if (j < 140 || j % 3 == 0) problem.biases[segment.first_token + j] = low;
        }
        expect_reference(*backend, problem);
        const Result got = run(*backend, problem);
        EXPECT_EQ(got.bias_gradient[segment.first_token], 0);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

// Nothing is added up in an order that depends on timing.
TEST_P(BiasedAttention, HasTheSameBitsEveryTime) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int head_dim : {64, 128}) {
    for (const Bias& bias : kBiases) {
      const Problem problem(*backend, {1, 3, head_dim, {500, 150}}, bias);
      const std::vector<float> first = bits_of(run(*backend, problem));
      for (int i = 0; i < 2; ++i) EXPECT_EQ(first, bits_of(run(*backend, problem)));
    }
  }
}

TEST_P(BiasedAttention, OfNoTokensWritesNothing) {
  KV_BACKEND_OR_SKIP(backend);
  const Result got = run(*backend, Problem(*backend, {1, 2, 16, {0, 0}}, {Form::kDistance}));
  for (const auto* numbers :
       {&got.output, &got.log_sums, &got.query_gradient, &got.key_gradient, &got.value_gradient, &got.bias_gradient}) {
    ref::expect_untouched(*numbers, 0, std::ssize(*numbers));
  }
}

TEST(BiasedAttentionOnCpu, HasTheSameBitsWithAnyNumberOfThreads) {
  const auto backend = ref::try_backend("cpu");
  for (const Bias& bias : kBiases) {
    const Problem problem(*backend, {1, 2, 64, {400, 150}}, bias);
    const auto with = [&](int threads) {
      const ref::Threads set(threads);
      return bits_of(run(*backend, problem));
    };
    const std::vector<float> alone = with(1);
    EXPECT_EQ(alone, with(2));
    EXPECT_EQ(alone, with(5));
  }
}

}  // namespace
}  // namespace kv
