#include "kernels/linear.h"

#include <array>

#include "tests/ref/linear.h"
#include "tests/ref/rms_norm.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Linear);

struct Shape {
  int64_t rows, in, out;
};

const std::vector<Shape> kShapes = {
    {0, 8, 8},
    {1, 1, 1},
    {1, 64, 33},
    {3, 65, 17},
    {4, 384, 64},
    {5, 384, 64},
    {11, 63, 31},
    {12, 64, 32},
    {13, 65, 33},
    {47, 16, 255},
    {48, 15, 256},
    {49, 17, 257},
    {191, 24, 64},
    {192, 24, 65},
    {193, 24, 300},
    {40, 255, 40},
    {40, 256, 40},
    {40, 257, 40},
    {20, 700, 48},
    {900, 40, 290},
    {1, 8, 8},
    {1, 1024, 40},
    {2, 2048, 2120},
    {3, 1032, 24},
    {4, 4104, 16},
    {5, 1032, 24},
    // A GPU's kernel for a single row: several words a thread; more outputs than it does at once.
    {1, 4104, 21},
    {1, 14336, 300},
    {1, 8, 40001},
};

struct Operands {
  Operands(const Backend& backend, const Shape& shape)
      : input(ref::rounded(backend, ref::random_values(shape.rows * shape.in, 1))),
        weight(ref::rounded(backend, ref::random_values(shape.out * shape.in, 2))),
        bias(ref::rounded(backend, ref::random_values(shape.out, 3))),
        addend(ref::rounded(backend, ref::random_values(shape.rows * shape.out, 4))) {}
  std::vector<float> input, weight, bias, addend;
};

std::vector<float> run(Backend& backend, const Shape& shape, const Operands& x) {
  const Tensor input = ref::upload_activations(backend, x.input), weight = ref::upload_activations(backend, x.weight);
  const Tensor bias = ref::upload_activations(backend, x.bias), addend = ref::upload_activations(backend, x.addend);
  Tensor output(backend, backend.activation_type(), shape.rows * shape.out);
  backend.linear({.input = input.ref(),
                  .products = {{.weight = weight.ref(),
                                .bias = x.bias.empty() ? ConstRef{} : bias.ref(),
                                .addend = x.addend.empty() ? ConstRef{} : addend.ref(),
                                .output = output.ref(),
                                .out = shape.out}},
                  .rows = shape.rows,
                  .in = shape.in});
  backend.synchronize();
  return ref::download_activations(output);
}

void check(Backend& backend, const Shape& shape, const Operands& x) {
  SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.in << " x " << shape.out);
  const std::vector<float> got = run(backend, shape, x);
  const ref::Product want = ref::linear(x.input, x.weight, x.bias, x.addend, shape.rows, shape.in, shape.out);
  ASSERT_EQ(got.size(), want.values.size());
  for (size_t i = 0; i < got.size(); ++i) {
    // A chain of `in` multiply-adds, then bias and addend.
    ASSERT_TRUE(ref::is_close(got[i], want.values[i],
                              {.roundings = static_cast<double>(shape.in + 2) + ref::storage_roundings(backend),
                               .magnitude = want.magnitudes[i]}))
        << "element " << i;
  }
}

TEST_P(Linear, MatchesTheReferenceOverShapes) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : kShapes) {
    Operands x(*backend, shape);
    check(*backend, shape, x);
    x.addend.clear();
    check(*backend, shape, x);
    x.bias.clear();
    check(*backend, shape, x);
    if (HasFatalFailure()) return;
  }
}

// Outputs that no block of a GPU's has alone, some of few, some of none; one with bias, one with an addend.
TEST_P(Linear, ProductsOfOneInputAreThoseOfEachAlone) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t rows : {1, 3, 7}) {
    for (const auto& [in, outs] : std::vector<std::pair<int64_t, std::array<int64_t, 3>>>{
             {64, {300, 5, 1}}, {4104, {1, 0, 700}}, {65, {4, 9, 2}}, {8, {40001, 1, 3000}}}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << in << " x " << outs[0] << ", " << outs[1] << ", "
                                        << outs[2]);
      std::vector<Operands> operands;
      std::vector<Tensor> weights, outputs;
      for (const int64_t out : outs) {
        operands.emplace_back(*backend, Shape{rows, in, out});
        weights.push_back(ref::upload_activations(*backend, operands.back().weight));
        outputs.emplace_back(*backend, backend->activation_type(), rows * out);
      }
      operands[1].bias = operands[2].bias = operands[0].addend = operands[1].addend = {};
      const Tensor bias = ref::upload_activations(*backend, operands[0].bias);
      const Tensor addend = ref::upload_activations(*backend, operands[2].addend);
      const Tensor input = ref::upload_activations(*backend, operands[0].input);
      backend->linear(
          {.input = input.ref(),
           .products =
               {{.weight = weights[0].ref(), .bias = bias.ref(), .output = outputs[0].ref(), .out = outs[0]},
                {.weight = weights[1].ref(), .output = outputs[1].ref(), .out = outs[1]},
                {.weight = weights[2].ref(), .addend = addend.ref(), .output = outputs[2].ref(), .out = outs[2]}},
           .rows = rows,
           .in = in});
      for (size_t p = 0; p < 3; ++p) {
        EXPECT_EQ(ref::download_activations(outputs[p]), run(*backend, {rows, in, outs[p]}, operands[p])) << p;
      }
    }
  }
}

// Widths that a GPU's kernel for a single row normalises itself, one word a thread and several, and those that are too
// odd or too wide for it.
TEST_P(Linear, ProductsOfANormAreThoseOfWhatItWrites) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [rows, in] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 8}, {1, 65}, {1, 384}, {1, 2560}, {1, 14336}, {1, 20000}, {3, 384}, {7, 65}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << in);
    const int64_t outs[2] = {300, 5};
    std::vector<Operands> operands;
    std::vector<Tensor> weights, outputs;
    for (const int64_t out : outs) {
      operands.emplace_back(*backend, Shape{rows, in, out});
      operands.back().addend = {};
      weights.push_back(ref::upload_activations(*backend, operands.back().weight));
      outputs.emplace_back(*backend, backend->activation_type(), rows * out);
    }
    operands[1].bias = {};
    const Tensor bias = ref::upload_activations(*backend, operands[0].bias);
    const std::vector<float> norm_weight = ref::rounded(*backend, ref::random_values(in, 7));
    const Tensor input = ref::upload_activations(*backend, operands[0].input),
                 of_norm = ref::upload_activations(*backend, norm_weight);
    Tensor normed(*backend, backend->activation_type(), rows * in);
    backend->linear(
        {.input = input.ref(),
         .norm = {.weight = of_norm.ref(), .output = normed.ref(), .epsilon = 1e-3f},
         .products = {{.weight = weights[0].ref(), .bias = bias.ref(), .output = outputs[0].ref(), .out = outs[0]},
                      {.weight = weights[1].ref(), .output = outputs[1].ref(), .out = outs[1]}},
         .rows = rows,
         .in = in});
    backend->synchronize();
    const std::vector<float> got = ref::download_activations(normed);
    ref::expect_close(
        got, ref::rms_norm(std::vector<double>(operands[0].input.begin(), operands[0].input.end()), norm_weight, 1e-3),
        {.roundings = static_cast<double>(in) / 2 + 5 + ref::storage_roundings(*backend), .magnitude = 2});
    for (size_t p = 0; p < 2; ++p) {
      operands[p].input = got;
      EXPECT_EQ(ref::download_activations(outputs[p]), run(*backend, {rows, in, outs[p]}, operands[p])) << p;
    }
  }
}

// One weight does not lie where words of memory begin, and one output is not rounded.
TEST_P(Linear, ProductsOfOneInputNeedNotBeAlike) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t rows : {1, 5}) {
    const Shape shape{rows, 64, 40};
    Operands x(*backend, shape);
    x.bias = x.addend = {};
    std::vector<float> moved = x.weight;
    moved.insert(moved.begin(), NAN);
    const Tensor input = ref::upload_activations(*backend, x.input),
                 weight = ref::upload_activations(*backend, x.weight);
    const Tensor moved_weight = ref::upload_activations(*backend, moved);
    Tensor outputs[3] = {{*backend, backend->activation_type(), rows * shape.out},
                         {*backend, DType::kF32, rows * shape.out},
                         {*backend, backend->activation_type(), rows * shape.out}};
    backend->linear({.input = input.ref(),
                     .products = {{.weight = moved_weight.at(1), .output = outputs[0].ref(), .out = shape.out},
                                  {.weight = weight.ref(), .output = outputs[1].ref(), .out = shape.out},
                                  {.weight = weight.ref(), .output = outputs[2].ref(), .out = shape.out}},
                     .rows = rows,
                     .in = shape.in});
    const std::vector<float> alone = run(*backend, shape, x);
    EXPECT_EQ(ref::download_activations(outputs[2]), alone);
    const ref::Product want = ref::linear(x.input, x.weight, {}, {}, rows, shape.in, shape.out);
    const std::vector<float> of_moved = ref::download_activations(outputs[0]);
    const std::vector<float> wide = ref::download_array<float>(outputs[1]);
    for (size_t i = 0; i < alone.size(); ++i) {
      const ref::Tolerance sum{.roundings = static_cast<double>(shape.in), .magnitude = want.magnitudes[i]};
      ASSERT_TRUE(ref::is_close(wide[i], want.values[i], sum)) << i;
      ASSERT_TRUE(ref::is_close(
          of_moved[i], want.values[i],
          {.roundings = sum.roundings + ref::storage_roundings(*backend), .magnitude = want.magnitudes[i]}))
          << i;
    }
  }
}

// A weight that does not lie where words of memory begin may need another kernel, before which the norm is the same.
TEST_P(Linear, ProductsOfANormNeedNotBeAlike) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t rows : {1, 5}) {
    const Shape shape{rows, 64, 40};
    const Operands x(*backend, shape);
    std::vector<float> moved = x.weight;
    moved.insert(moved.begin(), NAN);
    const Tensor input = ref::upload_activations(*backend, x.input),
                 weight = ref::upload_activations(*backend, x.weight),
                 moved_weight = ref::upload_activations(*backend, moved),
                 of_norm = ref::upload_activations(*backend, ref::rounded(*backend, ref::random_values(shape.in, 7)));
    Tensor normed(*backend, backend->activation_type(), rows * shape.in);
    const auto products_of = [&](ConstRef of, const LinearNorm& norm) {
      Tensor outputs[2] = {{*backend, backend->activation_type(), rows * shape.out},
                           {*backend, backend->activation_type(), rows * shape.out}};
      backend->linear({.input = of,
                       .norm = norm,
                       .products = {{.weight = weight.ref(), .output = outputs[0].ref(), .out = shape.out},
                                    {.weight = moved_weight.at(1), .output = outputs[1].ref(), .out = shape.out}},
                       .rows = rows,
                       .in = shape.in});
      return std::array{ref::download_activations(outputs[0]), ref::download_activations(outputs[1])};
    };
    const auto together = products_of(input.ref(), {.weight = of_norm.ref(), .output = normed.ref(), .epsilon = 1e-3f});
    EXPECT_EQ(together, products_of(std::as_const(normed).ref(), {}));
    EXPECT_NE(together[0], products_of(input.ref(), {})[0]);
  }
}

TEST_P(Linear, AddendMayBeTheOutput) {
  KV_BACKEND_OR_SKIP(backend);
  // Rows of ones, weights of 1 (output 0) and 2 (output 1): 3 products each, on top of what is there.
  for (const int64_t rows : {1, 6}) {
    const Tensor input = ref::upload_activations(*backend, std::vector<float>(rows * 3, 1.0f));
    const Tensor weight = ref::upload_activations(*backend, {1, 1, 1, 2, 2, 2});
    std::vector<float> residual, want;
    for (int64_t r = 0; r < rows; ++r) {
      residual.insert(residual.end(), {static_cast<float>(r), 100.0f});
      want.insert(want.end(), {static_cast<float>(r + 3), 106.0f});
    }
    Tensor output = ref::upload_activations(*backend, residual);
    backend->linear({.input = input.ref(),
                     .products = {{.weight = weight.ref(), .addend = output.ref(), .output = output.ref(), .out = 2}},
                     .rows = rows,
                     .in = 3});
    backend->synchronize();
    EXPECT_EQ(ref::download_activations(output), want);
  }
}

struct BackwardOperands {
  BackwardOperands(const Backend& backend, const Shape& shape)
      : output_gradient(ref::rounded(backend, ref::random_values(shape.rows * shape.out, 5))),
        weight(ref::rounded(backend, ref::random_values(shape.out * shape.in, 2))),
        addend(ref::rounded(backend, ref::random_values(shape.rows * shape.in, 6))) {}
  std::vector<float> output_gradient, weight, addend;
};

std::vector<float> run_backward(Backend& backend, const Shape& shape, const BackwardOperands& x) {
  const Tensor output_gradient = ref::upload_activations(backend, x.output_gradient);
  const Tensor weight = ref::upload_activations(backend, x.weight), addend = ref::upload_activations(backend, x.addend);
  const int64_t count = shape.rows * shape.in;
  Tensor input_gradient(backend, backend.activation_type(), count + 8);
  backend.linear_backward({.output_gradient = output_gradient.ref(),
                           .weight = weight.ref(),
                           .addend = x.addend.empty() ? ConstRef{} : addend.ref(),
                           .input_gradient = input_gradient.ref(),
                           .rows = shape.rows,
                           .in = shape.in,
                           .out = shape.out});
  backend.synchronize();
  const std::vector<float> all = ref::download_activations(input_gradient);
  ref::expect_untouched(all, count, count + 8);
  return ref::slice(all, 0, count);
}

void check_backward(Backend& backend, const Shape& shape, const BackwardOperands& x) {
  SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.in << " x " << shape.out);
  const std::vector<float> got = run_backward(backend, shape, x);
  const ref::Product want =
      ref::linear_backward(x.output_gradient, x.weight, x.addend, shape.rows, shape.in, shape.out);
  ASSERT_EQ(got.size(), want.values.size());
  for (size_t i = 0; i < got.size(); ++i) {
    // A chain of `out` multiply-adds, then the addend.
    ASSERT_TRUE(ref::is_close(got[i], want.values[i],
                              {.roundings = static_cast<double>(shape.out + 1) + ref::storage_roundings(backend),
                               .magnitude = want.magnitudes[i]}))
        << "element " << i;
  }
}

TEST_P(Linear, BackwardMatchesTheReferenceOverShapes) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : kShapes) {
    BackwardOperands x(*backend, shape);
    check_backward(*backend, shape, x);
    x.addend.clear();
    check_backward(*backend, shape, x);
    if (HasFatalFailure()) return;
  }
}

TEST(LinearReference, BackwardIsTheSlopeOfForward) {
  const Shape shape{2, 5, 3};
  const std::vector<float> weight = ref::random_values(shape.out * shape.in, 2);
  const std::vector<float> output_gradient = ref::random_values(shape.rows * shape.out, 5);
  const ref::Product got = ref::linear_backward(output_gradient, weight, {}, shape.rows, shape.in, shape.out);
  for (int64_t i = 0; i < shape.rows * shape.in; ++i) {
    // Of a linear map the quotient of differences is the slope, whatever the step: two, around zero.
    std::vector<float> ahead(shape.rows * shape.in), behind = ahead;
    ahead[i] = 1;
    behind[i] = -1;
    const ref::Product high = ref::linear(ahead, weight, {}, {}, shape.rows, shape.in, shape.out);
    const ref::Product low = ref::linear(behind, weight, {}, {}, shape.rows, shape.in, shape.out);
    double slope = 0;
    for (size_t o = 0; o < high.values.size(); ++o) slope += output_gradient[o] * (high.values[o] - low.values[o]) / 2;
    EXPECT_NEAR(got.values[i], slope, 1e-14);
  }
}

TEST_P(Linear, BackwardAddendMayBeTheGradient) {
  KV_BACKEND_OR_SKIP(backend);
  // Gradients of (1, 2) to two outputs with weights (1, 10, 100) and (2, 20, 200), on top of what is there.
  for (const int64_t rows : {1, 6}) {
    std::vector<float> output_gradient, there, want;
    for (int64_t r = 0; r < rows; ++r) {
      output_gradient.insert(output_gradient.end(), {1, 2});
      there.insert(there.end(), {static_cast<float>(r), 1, 2});
      want.insert(want.end(), {static_cast<float>(r + 5), 51, 502});
    }
    const Tensor by = ref::upload_activations(*backend, output_gradient);
    const Tensor weight = ref::upload_activations(*backend, {1, 10, 100, 2, 20, 200});
    Tensor gradient = ref::upload_activations(*backend, there);
    backend->linear_backward({.output_gradient = by.ref(),
                              .weight = weight.ref(),
                              .addend = gradient.ref(),
                              .input_gradient = gradient.ref(),
                              .rows = rows,
                              .in = 3,
                              .out = 2});
    backend->synchronize();
    EXPECT_EQ(ref::download_activations(gradient), want);
  }
}

TEST_P(Linear, IsTheSameForAnyNumberOfThreads) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : {Shape{500, 300, 290}, Shape{3, 300, 290}}) {
    const Operands x(*backend, shape);
    const BackwardOperands back(*backend, shape);
    const auto with_threads = [&](int count) {
      const ref::Threads threads(count);
      return std::pair(run(*backend, shape, x), run_backward(*backend, shape, back));
    };
    const auto alone = with_threads(1);
    EXPECT_EQ(alone, with_threads(2));
    EXPECT_EQ(alone, with_threads(3));
  }
}

}  // namespace
}  // namespace kv
