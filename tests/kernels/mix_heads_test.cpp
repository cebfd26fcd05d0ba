#include "kernels/mix_heads.h"

#include <algorithm>

#include "tests/ref/mix_heads.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, MixHeads);

struct Shape {
  int64_t tokens;
  int q_heads, kv_heads, head_dim;
  ref::HeadMix mix() const { return {tokens, kv_heads, int64_t{q_heads / kv_heads} * head_dim}; }
};

// Tokens around a GPU's 64 a block, widths around eight values a word, and around 16k values a task of the host.
constexpr Shape kShapes[] = {{0, 2, 1, 4},    {1, 1, 1, 1},    {1, 6, 2, 8},   {3, 2, 2, 7},   {63, 4, 2, 8},
                             {64, 4, 4, 2},   {65, 3, 1, 16},  {127, 8, 2, 4}, {129, 6, 3, 3}, {64, 8, 2, 16},
                             {5, 32, 8, 128}, {200, 8, 2, 64}, {300, 0, 2, 4}, {300, 4, 2, 0}, {17, 64, 8, 128}};

// `guard` more places lie behind what the op reads and writes, still NaN.
constexpr int64_t kGuard = 8;

struct Inputs {
  Inputs(const Backend& backend, const Shape& shape)
      : first(ref::rounded(backend, ref::random_values(shape.mix().elements(), 1))),
        second(ref::rounded(backend, ref::random_values(shape.mix().elements(), 2))),
        output_gradient(ref::rounded(backend, ref::random_values(shape.mix().elements(), 3))),
        shares(ref::random_values(shape.kv_heads, 4)) {
    for (float& share : shares) share = 0.5F + 0.5F * share;
    shares[0] = 0;
    if (shares.size() > 2) shares[2] = 1;
  }
  std::vector<float> first, second, output_gradient, shares;
};

// The op's, the rest having been checked.
std::vector<float> values_of(const Tensor& output, int64_t count) {
  std::vector<float> values = ref::download_activations(output);
  ref::expect_untouched(values, count, count + kGuard);
  values.resize(static_cast<size_t>(count));
  return values;
}

std::vector<float> mixed(Backend& backend, const Shape& shape, const Inputs& x) {
  const Tensor first = ref::upload_activations(backend, x.first), second = ref::upload_activations(backend, x.second);
  Tensor shares = ref::upload_array(backend, x.shares);
  const int64_t count = shape.mix().elements();
  Tensor output(backend, backend.activation_type(), count + kGuard);
  backend.mix_heads({.first = first.ref(),
                     .second = second.ref(),
                     .shares = ref::data_of<float>(shares),
                     .output = output.ref(),
                     .tokens = shape.tokens,
                     .q_heads = shape.q_heads,
                     .kv_heads = shape.kv_heads,
                     .head_dim = shape.head_dim});
  return values_of(output, count);
}

struct Gradients {
  std::vector<float> first, second, shares;
  bool operator==(const Gradients&) const = default;
};

enum class Into : uint8_t { kOwn, kFirst, kSecond };  // which gradient takes the output gradient's place

// The shares' gradient is added to `start` in every place.
Gradients run(Backend& backend, const Shape& shape, const Inputs& x, float start = 0, Into into = Into::kOwn) {
  const Tensor first = ref::upload_activations(backend, x.first), second = ref::upload_activations(backend, x.second);
  const int64_t count = shape.mix().elements();
  std::vector<float> guarded = x.output_gradient;
  guarded.resize(guarded.size() + kGuard, NAN);
  Tensor by = ref::upload_activations(backend, guarded), shares = ref::upload_array(backend, x.shares);
  Tensor first_gradient(backend, backend.activation_type(), count + kGuard);
  Tensor second_gradient(backend, backend.activation_type(), count + kGuard);
  Tensor& to_first = into == Into::kFirst ? by : first_gradient;
  Tensor& to_second = into == Into::kSecond ? by : second_gradient;
  Tensor share_gradient = ref::upload_array(backend, std::vector<float>(x.shares.size(), start));
  backend.mix_heads_backward({.first = first.ref(),
                              .second = second.ref(),
                              .shares = ref::data_of<float>(shares),
                              .output_gradient = by.ref(),
                              .first_gradient = to_first.ref(),
                              .second_gradient = to_second.ref(),
                              .share_gradient = ref::data_of<float>(share_gradient),
                              .tokens = shape.tokens,
                              .q_heads = shape.q_heads,
                              .kv_heads = shape.kv_heads,
                              .head_dim = shape.head_dim});
  return {values_of(to_first, count), values_of(to_second, count), ref::download_array<float>(share_gradient)};
}

TEST_P(MixHeads, MixesByTheShareOfTheQueryHeadsKvHead) {
  KV_BACKEND_OR_SKIP(backend);
  // A token of four query heads of one value, two of them a KV head.
  const Shape shape{.tokens = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 1};
  Inputs x(*backend, shape);
  x.first = {1, 2, 3, 4};
  x.second = {5, 6, 7, 8};
  x.shares = {0.75F, 0.25F};
  EXPECT_EQ(mixed(*backend, shape, x), (std::vector<float>{2, 3, 6, 7}));
  x.output_gradient = {1, 2, 4, -8};
  const Gradients got = run(*backend, shape, x, 100);
  EXPECT_EQ(got.first, (std::vector<float>{0.75F, 1.5F, 1, -2}));
  EXPECT_EQ(got.second, (std::vector<float>{0.25F, 0.5F, 3, -6}));
  EXPECT_EQ(got.shares, (std::vector<float>{100 - 4 * 3, 100 - 4 * -4}));
}

TEST_P(MixHeads, MatchesTheReference) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : kShapes) {
    const Inputs x(*backend, shape);
    const ref::HeadMix mix = shape.mix();
    const std::vector<float> got = mixed(*backend, shape, x);
    const std::vector<double> want = ref::mix_heads(mix, x.first, x.second, x.shares);
    for (int64_t i = 0; i < mix.elements(); ++i) {
      // 1 − α, a product, and the sum, of half a unit each.
      const double share = x.shares[mix.head(i)];
      const double magnitude = share * std::abs(x.first[i]) + (1 - share) * std::abs(x.second[i]);
      ASSERT_TRUE(
          ref::is_close(got[i], want[i], {.roundings = 1.5 + ref::storage_roundings(*backend), .magnitude = magnitude}))
          << "element " << i << " of " << shape.tokens << " tokens";
    }
  }
}

TEST_P(MixHeads, BackwardMatchesTheReference) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr float kStart = 0.125F;
  for (const Shape& shape : kShapes) {
    const Inputs x(*backend, shape);
    const ref::HeadMix mix = shape.mix();
    const Gradients got = run(*backend, shape, x, kStart);
    const ref::HeadMixGradient want = ref::mix_heads_backward(mix, x.first, x.second, x.shares, x.output_gradient);
    for (int64_t i = 0; i < mix.elements(); ++i) {
      // A product, of half a unit, and for the second 1 − α.
      const double stored = ref::storage_roundings(*backend);
      ASSERT_TRUE(
          ref::is_close(got.first[i], want.first[i], {.roundings = 0.5 + stored, .magnitude = std::abs(want.first[i])}))
          << "element " << i;
      ASSERT_TRUE(ref::is_close(got.second[i], want.second[i],
                                {.roundings = 1 + stored, .magnitude = std::abs(want.second[i])}))
          << "element " << i;
    }
    for (int head = 0; head < shape.kv_heads; ++head) {
      // A difference and its product; sums of doubles, rounded once; what they are added to.
      ASSERT_TRUE(ref::is_close(got.shares[head], kStart + want.shares[head],
                                {.roundings = 2, .magnitude = kStart + want.share_magnitude[head]}))
          << "head " << head << " of " << shape.tokens << " tokens";
    }
  }
}

TEST_P(MixHeads, MayWriteOverWhatItReads) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : {Shape{65, 6, 3, 3}, Shape{65, 4, 2, 8}}) {
    const Inputs x(*backend, shape);
    const std::vector<float> apart = mixed(*backend, shape, x);
    Tensor shares = ref::upload_array(*backend, x.shares);
    Tensor first = ref::upload_activations(*backend, x.first), second = ref::upload_activations(*backend, x.second);
    MixHeadsArgs args{.first = first.ref(),
                      .second = second.ref(),
                      .shares = ref::data_of<float>(shares),
                      .output = first.ref(),
                      .tokens = shape.tokens,
                      .q_heads = shape.q_heads,
                      .kv_heads = shape.kv_heads,
                      .head_dim = shape.head_dim};
    backend->mix_heads(args);
    EXPECT_EQ(ref::download_activations(first), apart);
    first = ref::upload_activations(*backend, x.first);
    args.first = first.ref();
    args.output = second.ref();
    backend->mix_heads(args);
    EXPECT_EQ(ref::download_activations(second), apart);
    const Gradients gradients = run(*backend, shape, x);
    EXPECT_EQ(run(*backend, shape, x, 0, Into::kFirst), gradients);
    EXPECT_EQ(run(*backend, shape, x, 0, Into::kSecond), gradients);
  }
}

TEST(MixHeadsReference, BackwardIsTheSlopeOfForward) {
  constexpr double kStep = 1e-3;
  const Shape shape{.tokens = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 3};
  const ref::HeadMix mix = shape.mix();
  const auto drawn = [](int64_t count, uint32_t seed) {
    const std::vector<float> values = ref::random_values(count, seed);
    return std::vector<double>(values.begin(), values.end());
  };
  std::vector<double> first = drawn(mix.elements(), 1), second = drawn(mix.elements(), 2);
  std::vector<double> shares = {0.25, 0.875};
  const std::vector<double> by = drawn(mix.elements(), 3);
  const ref::HeadMixGradient got = ref::mix_heads_backward(mix, first, second, shares, by);
  const auto expect_slopes = [&](std::vector<double>& values, const std::vector<double>& gradient) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double before = values[i];
      const auto loss = [&](double value) {
        values[i] = value;
        const std::vector<double> output = ref::mix_heads(mix, first, second, shares);
        values[i] = before;
        double sum = 0;
        for (size_t e = 0; e < output.size(); ++e) sum += by[e] * output[e];
        return sum;
      };
      // Of first degree in each, so the step's square costs nothing; a sum of 36 terms below 2 rounds by 1e-14.
      EXPECT_NEAR(gradient[i], (loss(before + kStep) - loss(before - kStep)) / (2 * kStep), 1e-14 / kStep);
    }
  };
  expect_slopes(first, got.first);
  expect_slopes(second, got.second);
  expect_slopes(shares, got.shares);
}

TEST_P(MixHeads, ThreadsDoNotChangeABit) {
  KV_BACKEND_OR_SKIP(backend);
  const Shape shape{.tokens = 300, .q_heads = 8, .kv_heads = 2, .head_dim = 64};
  const auto with = [&](int threads) {
    const ref::Threads limit(threads);
    return run(*backend, shape, Inputs(*backend, shape));
  };
  EXPECT_EQ(with(1), with(2));
}

}  // namespace
}  // namespace kv
