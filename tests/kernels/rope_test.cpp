#include "kernels/rope.h"

#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "tests/ref/rms_norm.h"
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
  backend.rope({.vectors = {{.input = x.ref(), .output = x.ref(), .heads = heads}},
                .positions = p.ref().as<int32_t>(),
                .inv_freq = f.ref().as<float>(),
                .tokens = static_cast<int64_t>(positions.size()),
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
    backend->rope({.vectors = {{.input = from.at(first), .output = to.at(first), .heads = kHeads}},
                   .positions = p.ref().as<int32_t>(),
                   .inv_freq = f.ref().as<float>(),
                   .tokens = std::ssize(positions),
                   .head_dim = 2 * kHalf,
                   .attention_factor = 1.25f});
    const std::vector<float> got = ref::download_activations(to);
    EXPECT_EQ(ref::slice(got, first, count), want) << "from element " << first;
    EXPECT_EQ(ref::slice(got, 0, first), std::vector<float>(static_cast<size_t>(first), 7));
    EXPECT_EQ(ref::slice(got, first + count, 8), std::vector<float>(8, 7));
  }
}

// Queries and keys of some tokens, with a norm or without.
struct TwoVectors {
  TwoVectors(const Backend& backend, int tokens, int dim, std::array<int, 2> heads) : heads(heads), dim(dim) {
    for (int t = 0; t < tokens; ++t) positions.push_back(t % 3 == 0 ? t * 641 : t);
    for (int d = 0; d < dim / 2; ++d) inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(d) / dim));
    for (size_t v = 0; v < 2; ++v) {
      inputs[v] = ref::rounded(backend, ref::random_values(static_cast<size_t>(tokens) * heads[v] * dim, 1 + v));
      norms[v] = ref::rounded(backend, ref::random_values(dim, 3 + v));
    }
  }
  std::array<int, 2> heads;
  int dim;
  std::vector<int32_t> positions;
  std::vector<float> inv_freq;
  std::array<std::vector<float>, 2> inputs, norms;  // norms: empty, or [dim]
};

struct Turned {
  std::array<std::vector<float>, 2> normed, output;
};

// The first vectors' norm is taken in place.
Turned run(Backend& backend, const TwoVectors& of) {
  std::vector<Tensor> inputs, norms, normed, outputs;
  for (size_t v = 0; v < 2; ++v) {
    inputs.push_back(ref::upload_activations(backend, of.inputs[v]));
    norms.push_back(ref::upload_activations(backend, of.norms[v]));
    normed.push_back(ref::upload_activations(backend, std::vector<float>(of.inputs[v].size(), 7)));
    outputs.push_back(ref::upload_activations(backend, std::vector<float>(of.inputs[v].size(), 7)));
  }
  const Tensor p = ref::upload_array(backend, of.positions), f = ref::upload_array(backend, of.inv_freq);
  const auto vectors = [&](size_t v) {
    return RopeVectors{.input = inputs[v].ref(),
                       .norm = of.norms[v].empty() ? ConstRef{} : norms[v].ref(),
                       .normed = v == 0 ? inputs[v].ref() : normed[v].ref(),
                       .output = outputs[v].ref(),
                       .heads = of.heads[v]};
  };
  backend.rope({.vectors = {vectors(0), vectors(1)},
                .positions = p.ref().as<int32_t>(),
                .inv_freq = f.ref().as<float>(),
                .tokens = std::ssize(of.positions),
                .head_dim = of.dim,
                .attention_factor = 1.25f,
                .norm_epsilon = 1e-3f});
  return {{ref::download_activations(inputs[0]), ref::download_activations(normed[1])},
          {ref::download_activations(outputs[0]), ref::download_activations(outputs[1])}};
}

TEST_P(Rope, QueriesAndKeysTurnTogetherAsEachAlone) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [tokens, dim] : std::vector<std::array<int, 2>>{{1, 128}, {5, 64}, {300, 48}, {40, 20}, {0, 64}}) {
    for (const std::array<int, 2> heads : {std::array{4, 1}, {9, 3}, {70, 2}}) {
      TwoVectors of(*backend, tokens, dim, heads);
      of.norms = {};
      const Turned got = run(*backend, of);
      for (size_t v = 0; v < 2; ++v) {
        EXPECT_EQ(got.output[v], run(*backend, of.inputs[v], of.positions, of.inv_freq, heads[v], 1.25f));
      }
      EXPECT_EQ(got.normed[0], of.inputs[0]);
      EXPECT_EQ(got.normed[1], std::vector<float>(of.inputs[1].size(), 7));
    }
  }
}

// Of head dimensions that are a power of two and others, so many heads that a block has them in several rounds.
TEST_P(Rope, ANormOfEveryHeadComesBefore) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [tokens, dim] :
       std::vector<std::array<int, 2>>{{1, 128}, {7, 64}, {300, 64}, {3, 256}, {5, 512}, {9, 80}, {40, 20}, {2, 16}}) {
    for (const std::array<int, 2> heads : {std::array{4, 1}, {9, 3}, {70, 2}}) {
      for (const size_t without : {0, 1, 2}) {
        SCOPED_TRACE(::testing::Message() << tokens << " x " << heads[0] << ", " << heads[1] << " x " << dim);
        TwoVectors of(*backend, tokens, dim, heads);
        if (without < 2) of.norms[without] = {};
        const Turned got = run(*backend, of);
        for (size_t v = 0; v < 2; ++v) {
          if (v == without) continue;
          const std::vector<double> input(of.inputs[v].begin(), of.inputs[v].end());
          const double roundings = dim + 6 + ref::storage_roundings(*backend);
          ref::expect_close(got.normed[v], ref::rms_norm(input, of.norms[v], 1e-3),
                            {.roundings = roundings, .magnitude = 2});
          ref::expect_close(got.output[v], ref::rope(got.normed[v], of.positions, of.inv_freq, heads[v], 1.25),
                            {.roundings = 5 + ref::storage_roundings(*backend), .magnitude = 5});
        }
        if (without == 2) continue;
        const std::vector<float>& input = of.inputs[without];
        EXPECT_EQ(got.output[without], run(*backend, input, of.positions, of.inv_freq, heads[without], 1.25f));
        EXPECT_EQ(got.normed[without], without == 0 ? input : std::vector<float>(input.size(), 7));
      }
    }
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
