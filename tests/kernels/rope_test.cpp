#include "kernels/rope.h"

#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "tests/ref/rope.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Rope);

std::vector<float> run(Backend& backend, const std::vector<float>& input, const std::vector<int32_t>& positions,
                       const std::vector<float>& inv_freq, int heads, float factor,
                       RopeDirection direction = RopeDirection::kForward) {
  Tensor x = ref::upload_activations(backend, input);
  const Tensor p = ref::upload_array(backend, positions), f = ref::upload_array(backend, inv_freq);
  backend.rope({.input = x.ref(),
                .positions = p.ref().as<int32_t>(),
                .inv_freq = f.ref().as<float>(),
                .output = x.ref(),
                .tokens = static_cast<int64_t>(positions.size()),
                .heads = heads,
                .head_dim = static_cast<int>(2 * inv_freq.size()),
                .attention_factor = factor,
                .direction = direction});
  backend.synchronize();
  return ref::download_activations(x);
}

TEST_P(Rope, MatchesTheReferenceInPlaceOverShapes) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [tokens, heads, dim] : std::vector<std::array<int, 3>>{{0, 1, 2},
                                                                          {1, 1, 2},
                                                                          {3, 2, 16},
                                                                          {63, 3, 64},
                                                                          {64, 1, 80},
                                                                          {65, 8, 128},
                                                                          {200, 4, 64},
                                                                          {1001, 3, 64},
                                                                          {700, 5, 20},
                                                                          {2, 70, 128},
                                                                          {3, 1, 600}}) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << heads << " x " << dim);
    const std::vector<float> input =
        ref::rounded(*backend, ref::random_values(static_cast<size_t>(tokens) * heads * dim, 1));
    std::vector<int32_t> positions;
    for (int t = 0; t < tokens; ++t) positions.push_back(t % 3 == 0 ? t * 641 : t);  // far positions among near ones
    std::vector<float> inv_freq;
    for (int d = 0; d < dim / 2; ++d) inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(d) / dim));
    // Cosine, its factor, two products and a sum.
    const ref::Tolerance tolerance{.roundings = 5 + ref::storage_roundings(*backend), .magnitude = 2.5};
    ref::expect_close(run(*backend, input, positions, inv_freq, heads, 1.25f),
                      ref::rope(input, positions, inv_freq, heads, 1.25), tolerance);
    ref::expect_close(run(*backend, input, positions, inv_freq, heads, 1.25f, RopeDirection::kBackward),
                      ref::rope_backward(input, positions, inv_freq, heads, 1.25), tolerance);
  }
}

// Nor need they begin where words of memory do.
TEST_P(Rope, VectorsMayLieElsewhere) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kHeads = 3, kHalf = 32;
  std::vector<int32_t> positions(300);
  std::iota(positions.begin(), positions.end(), 1000);
  std::vector<float> inv_freq;
  for (int d = 0; d < kHalf; ++d) inv_freq.push_back(std::pow(10000.0f, -static_cast<float>(d) / kHalf));
  const std::vector<float> input = ref::rounded(*backend, ref::random_values(positions.size() * kHeads * 2 * kHalf, 1));
  const std::vector<float> want = run(*backend, input, positions, inv_freq, kHeads, 1.25f);
  const Tensor p = ref::upload_array(*backend, positions), f = ref::upload_array(*backend, inv_freq);
  const auto count = static_cast<int64_t>(input.size());
  for (const int64_t first : {0, 1, 8}) {
    std::vector<float> moved(static_cast<size_t>(first), NAN);
    moved.insert(moved.end(), input.begin(), input.end());
    Tensor from = ref::upload_activations(*backend, moved);
    Tensor to = ref::upload_activations(*backend, std::vector<float>(moved.size() + 8, 7));
    backend->rope({.input = from.at(first),
                   .positions = p.ref().as<int32_t>(),
                   .inv_freq = f.ref().as<float>(),
                   .output = to.at(first),
                   .tokens = std::ssize(positions),
                   .heads = kHeads,
                   .head_dim = 2 * kHalf,
                   .attention_factor = 1.25f});
    const std::vector<float> got = ref::download_activations(to);
    EXPECT_EQ(ref::slice(got, first, count), want) << "from element " << first;
    EXPECT_EQ(ref::slice(got, 0, first), std::vector<float>(static_cast<size_t>(first), 7));
    EXPECT_EQ(ref::slice(got, first + count, 8), std::vector<float>(8, 7));
  }
}

TEST_P(Rope, AQuarterTurnSwapsTheHalves) {
  KV_BACKEND_OR_SKIP(backend);
  // (1, 2) turned by 90° is (−2, 1); position 0 stays.
  const std::vector<float> got =
      run(*backend, {1, 2, 1, 2}, {1, 0}, {static_cast<float>(std::numbers::pi / 2)}, 1, 1.0f);
  ref::expect_close(got, std::vector<double>{-2, 1, 1, 2},
                    {.roundings = 3 + ref::storage_roundings(*backend), .magnitude = 2});
}

TEST_P(Rope, BackwardTurnsTheOtherWayWithTheSameFactor) {
  KV_BACKEND_OR_SKIP(backend);
  // (1, 2) turned by −90° is (2, −1); a factor of 3 is not undone, but passed through.
  const std::vector<float> got = run(*backend, {1, 2, 1, 2}, {1, 0}, {static_cast<float>(std::numbers::pi / 2)}, 1,
                                     3.0f, RopeDirection::kBackward);
  ref::expect_close(got, std::vector<double>{6, -3, 3, 6},
                    {.roundings = 3 + ref::storage_roundings(*backend), .magnitude = 6});
}

TEST(RopeReference, BackwardIsTheSlopeOfForward) {
  const std::vector<int32_t> positions = {3, 1000};
  const std::vector<float> inv_freq = {1.0f, 0.25f, 0.01f};
  const std::vector<float> output_gradient = ref::random_values(24, 2);
  const std::vector<double> got = ref::rope_backward(output_gradient, positions, inv_freq, 2, 1.25);
  for (size_t i = 0; i < output_gradient.size(); ++i) {
    // Of a linear map the quotient of differences is the slope, whatever the step: two, around zero.
    std::vector<float> ahead(output_gradient.size()), behind = ahead;
    ahead[i] = 1;
    behind[i] = -1;
    const std::vector<double> high = ref::rope(ahead, positions, inv_freq, 2, 1.25);
    const std::vector<double> low = ref::rope(behind, positions, inv_freq, 2, 1.25);
    double slope = 0;
    for (size_t o = 0; o < high.size(); ++o) slope += output_gradient[o] * (high[o] - low[o]) / 2;
    EXPECT_NEAR(got[i], slope, 1e-14);
  }
}

TEST(RopeThreads, DoNotChangeABit) {
  const auto backend = ref::try_backend("cpu");
  std::vector<int32_t> positions(200);
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<float> input = ref::random_values(positions.size() * 8, 1);
  const auto with_threads = [&](int count) {
    const ref::Threads threads(count);
    return run(*backend, input, positions, {1.0f, 0.1f}, 2, 1.25f, RopeDirection::kBackward);
  };
  EXPECT_EQ(with_threads(1), with_threads(2));
}

}  // namespace
}  // namespace kv
