#include "kernels/rms_norm.h"

#include <cmath>

#include "tests/ref/rms_norm.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RmsNorm);

constexpr float kEpsilon = 0.1F;  // beside mean squares of a third: no tolerance hides a norm without it

const std::vector<std::pair<int64_t, int64_t>> kShapes = {
    {0, 8},    {1, 1},    {1, 15}, {3, 16}, {5, 17},   {40, 384}, {43, 385}, {1000, 64}, {2, 20000}, {3, 1024},
    {2, 4104}, {2, 8192}, {7, 8},  {5, 72}, {33, 128}, {9, 256},  {6, 320},  {21, 512},  {5, 576},   {3, 776}};

std::vector<double> doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

TEST_P(RmsNorm, MatchesTheReferenceOverShapes) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [rows, width] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << width);
    const std::vector<float> input = ref::rounded(*backend, ref::random_values(rows * width, 1));
    const std::vector<float> weight = ref::rounded(*backend, ref::random_values(width, 2));
    const Tensor x = ref::upload_activations(*backend, input), w = ref::upload_activations(*backend, weight);
    Tensor output(*backend, backend->activation_type(), rows * width);
    backend->rms_norm({.input = x.ref(),
                       .weight = w.ref(),
                       .output = output.ref(),
                       .rows = rows,
                       .width = width,
                       .epsilon = kEpsilon});
    backend->synchronize();
    // The mean square has no cancellation: `width` roundings, halved by the root; root, division and two products.
    ref::expect_close(
        ref::download_activations(output), ref::rms_norm(doubles(input), weight, kEpsilon),
        {.roundings = static_cast<double>(width) / 2 + 5 + ref::storage_roundings(*backend), .magnitude = 2});
  }
}

TEST_P(RmsNorm, InPlaceByHand) {
  KV_BACKEND_OR_SKIP(backend);
  // Mean square of (1, 7) is 25, so the row is divided by 5 and weighted by (5, 10); epsilon lifts a zero row.
  Tensor x = ref::upload_activations(*backend, {1, 7, 0, 0});
  const Tensor weight = ref::upload_activations(*backend, {5, 10});
  backend->rms_norm(
      {.input = x.ref(), .weight = weight.ref(), .output = x.ref(), .rows = 2, .width = 2, .epsilon = 1e-12f});
  backend->synchronize();
  ref::expect_close(ref::download_activations(x), std::vector<double>{1, 14, 0, 0},
                    {.roundings = 5 + ref::storage_roundings(*backend), .magnitude = 14});
}

// What the backward reads, rows of one width; an empty addend: none.
struct Backward {
  Backward(const Backend& backend, int64_t rows, int64_t width)
      : rows(rows),
        width(width),
        output_gradient(ref::rounded(backend, ref::random_values(rows * width, 3))),
        input(ref::rounded(backend, ref::random_values(rows * width, 1))),
        weight(ref::rounded(backend, ref::random_values(width, 2))),
        addend(ref::rounded(backend, ref::random_values(rows * width, 4))) {}

  int64_t rows, width;
  std::vector<float> output_gradient, input, weight, addend;
};

// Which of its operands the gradient takes the place of.
enum class Place { kOwn, kOutputGradient, kInput, kAddend };

std::vector<float> run(Backend& backend, const Backward& x, Place place = Place::kOwn) {
  const int64_t count = x.rows * x.width;
  Tensor output_gradient = ref::upload_activations(backend, x.output_gradient);
  Tensor input = ref::upload_activations(backend, x.input), addend = ref::upload_activations(backend, x.addend);
  Tensor own(backend, backend.activation_type(), count + 8);
  const Tensor weight = ref::upload_activations(backend, x.weight);
  Tensor* const places[] = {&own, &output_gradient, &input, &addend};
  Tensor& input_gradient = *places[static_cast<size_t>(place)];
  backend.rms_norm_backward({.output_gradient = output_gradient.ref(),
                             .input = input.ref(),
                             .weight = weight.ref(),
                             .addend = x.addend.empty() ? ConstRef{} : addend.ref(),
                             .input_gradient = input_gradient.ref(),
                             .rows = x.rows,
                             .width = x.width,
                             .epsilon = kEpsilon});
  backend.synchronize();
  const std::vector<float> all = ref::download_activations(input_gradient);
  if (place == Place::kOwn) ref::expect_untouched(all, count, count + 8);
  return ref::slice(all, 0, count);
}

void check(Backend& backend, const Backward& x) {
  SCOPED_TRACE(::testing::Message() << x.rows << " x " << x.width);
  const std::vector<float> got = run(backend, x);
  const ref::RmsNormGradient want = ref::rms_norm_backward(x.output_gradient, x.input, x.weight, kEpsilon);
  const double roundings = ref::rms_norm_backward_roundings(x.width) + ref::storage_roundings(backend);
  ASSERT_EQ(got.size(), want.values.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double more = x.addend.empty() ? 0 : x.addend[i];
    ASSERT_TRUE(ref::is_close(got[i], want.values[i] + more,
                              {.roundings = roundings, .magnitude = want.magnitudes[i] + std::abs(more)}))
        << "element " << i;
  }
}

TEST_P(RmsNorm, BackwardMatchesTheReferenceOverShapes) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [rows, width] : kShapes) {
    Backward x(*backend, rows, width);
    check(*backend, x);
    x.addend.clear();
    check(*backend, x);
    if (HasFatalFailure()) return;
  }
}

TEST_P(RmsNorm, BackwardByHand) {
  KV_BACKEND_OR_SKIP(backend);
  // Mean square of (1, 7) is 25, s = 1/5. With weights (5, 10) and a gradient of (5, 0), g = (25, 0) and mean g x is
  // 12.5, whose pull is 12.5 / 125 = 0.1 of x: (5, 0) − (0.1, 0.7). What passes by the norm is added.
  const Tensor output_gradient = ref::upload_activations(*backend, {5, 0});
  const Tensor input = ref::upload_activations(*backend, {1, 7}), weight = ref::upload_activations(*backend, {5, 10});
  Tensor gradient = ref::upload_activations(*backend, {100, 200});
  backend->rms_norm_backward({.output_gradient = output_gradient.ref(),
                              .input = input.ref(),
                              .weight = weight.ref(),
                              .addend = gradient.ref(),
                              .input_gradient = gradient.ref(),
                              .rows = 1,
                              .width = 2,
                              .epsilon = 1e-12f});
  backend->synchronize();
  ref::expect_close(ref::download_activations(gradient), std::vector<double>{104.9, 199.3},
                    {.roundings = 17 + ref::storage_roundings(*backend), .magnitude = 200});
}

TEST_P(RmsNorm, BackwardMayWriteOverWhatItReads) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t width : {64, 128, 384, 576, 1000, 1024}) {
    const Backward x(*backend, 5, width);
    const std::vector<float> apart = run(*backend, x);
    for (const Place place : {Place::kOutputGradient, Place::kInput, Place::kAddend}) {
      EXPECT_EQ(run(*backend, x, place), apart) << width << ", place " << static_cast<int>(place);
    }
  }
}

// Rows need not begin where words of memory do.
TEST_P(RmsNorm, RowsMayBeginAnywhere) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t width : {64, 384, 576}) {
    SCOPED_TRACE(width);
    const Backward x(*backend, 5, width);
    const int64_t count = x.rows * x.width;
    const auto moved = [&](std::vector<float> values) {
      values.insert(values.begin(), NAN);
      return ref::upload_activations(*backend, values);
    };
    Tensor input = moved(x.input), weight = moved(x.weight), output_gradient = moved(x.output_gradient);
    Tensor output = moved(std::vector<float>(static_cast<size_t>(count), 7)), gradient = moved(x.addend);
    backend->rms_norm({.input = input.at(1),
                       .weight = weight.at(1),
                       .output = output.at(1),
                       .rows = x.rows,
                       .width = x.width,
                       .epsilon = kEpsilon});
    backend->rms_norm_backward({.output_gradient = output_gradient.at(1),
                                .input = input.at(1),
                                .weight = weight.at(1),
                                .addend = gradient.at(1),
                                .input_gradient = gradient.at(1),
                                .rows = x.rows,
                                .width = x.width,
                                .epsilon = kEpsilon});
    const double roundings = static_cast<double>(width) / 2 + ref::storage_roundings(*backend);
    ref::expect_close(ref::slice(ref::download_activations(output), 1, count),
                      ref::rms_norm(doubles(x.input), x.weight, kEpsilon), {.roundings = roundings, .magnitude = 2});
    const ref::RmsNormGradient want = ref::rms_norm_backward(x.output_gradient, x.input, x.weight, kEpsilon);
    const std::vector<float> got = ref::slice(ref::download_activations(gradient), 1, count);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(ref::is_close(got[i], want.values[i] + x.addend[i],
                                {.roundings = 2.5 * roundings + 50, .magnitude = want.magnitudes[i] + 1}))
          << "element " << i;
    }
  }
}

TEST(RmsNormReference, BackwardIsTheSlopeOfForward) {
  constexpr double kStep = 1e-4;
  const std::vector<float> weight = ref::random_values(5, 2), output_gradient = ref::random_values(15, 3);
  const std::vector<float> input = ref::random_values(15, 1);
  const ref::RmsNormGradient got = ref::rms_norm_backward(output_gradient, input, weight, kEpsilon);
  for (size_t i = 0; i < input.size(); ++i) {
    std::vector<double> ahead = doubles(input), behind = ahead;
    ahead[i] += kStep;
    behind[i] -= kStep;
    const std::vector<double> high = ref::rms_norm(ahead, weight, kEpsilon);
    const std::vector<double> low = ref::rms_norm(behind, weight, kEpsilon);
    double slope = 0;
    for (size_t o = 0; o < high.size(); ++o) slope += output_gradient[o] * (high[o] - low[o]) / (2 * kStep);
    // The step squared times the third derivative, which is s² of the first, and s at most 1 / sqrt(kEpsilon).
    EXPECT_NEAR(got.values[i], slope, 10 * kStep * kStep * got.magnitudes[i]);
  }
}

TEST(RmsNormThreads, DoNotChangeABit) {
  const auto backend = ref::try_backend("cpu");
  const Backward x(*backend, 300, 385);
  const auto with_threads = [&](int count) {
    const ref::Threads threads(count);
    return run(*backend, x);
  };
  EXPECT_EQ(with_threads(1), with_threads(2));
}

}  // namespace
}  // namespace kv
