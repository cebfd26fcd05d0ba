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

constexpr float kEpsilon = 0.1F;  // beside mean squares of a third: no tolerance hides a norm without it

RopeAngles angles_of(const Tensor& positions, const Tensor& inv_freq, float factor) {
  return {.positions = positions.ref().as<int32_t>(),
          .inv_freq = inv_freq.ref().as<float>(),
          .tokens = positions.elements(),
          .head_dim = static_cast<int>(2 * inv_freq.elements()),
          .attention_factor = factor};
}

std::vector<float> run(Backend& backend, const std::vector<float>& input, const std::vector<int32_t>& positions,
                       const std::vector<float>& inv_freq, int heads, float factor) {
  Tensor x = ref::upload_activations(backend, input);
  const Tensor p = ref::upload_array(backend, positions), f = ref::upload_array(backend, inv_freq);
  backend.rope({.vectors = {{.input = x.ref(), .output = x.ref(), .heads = heads}}, .angles = angles_of(p, f, factor)});
  backend.synchronize();
  return ref::download_activations(x);
}

std::vector<float> run_back(Backend& backend, const std::vector<float>& output_gradient,
                            const std::vector<int32_t>& positions, const std::vector<float>& inv_freq, int heads,
                            float factor) {
  Tensor x = ref::upload_activations(backend, output_gradient);
  const Tensor p = ref::upload_array(backend, positions), f = ref::upload_array(backend, inv_freq);
  backend.rope_backward({.vectors = {{.output_gradient = x.ref(), .input_gradient = x.ref(), .heads = heads}},
                         .angles = angles_of(p, f, factor)});
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
    ref::expect_close(run_back(*backend, input, positions, inv_freq, heads, 1.25f),
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
                   .angles = angles_of(p, f, 1.25f)});
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
  backend.rope({.vectors = {vectors(0), vectors(1)}, .angles = angles_of(p, f, 1.25f), .norm_epsilon = kEpsilon});
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
  for (const auto& [tokens, dim] : std::vector<std::array<int, 2>>{
           {1, 128}, {7, 64}, {300, 64}, {3, 256}, {5, 512}, {2, 1024}, {9, 80}, {40, 20}, {2, 16}}) {
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
          ref::expect_close(got.normed[v], ref::rms_norm(input, of.norms[v], kEpsilon),
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
  const std::vector<float> got =
      run_back(*backend, {1, 2, 1, 2}, {1, 0}, {static_cast<float>(std::numbers::pi / 2)}, 1, 3.0f);
  ref::expect_close(got, std::vector<double>{6, -3, 3, 6},
                    {.roundings = 3 + ref::storage_roundings(*backend), .magnitude = 6});
}

// Which of its operands a gradient takes the place of.
enum class Place { kOwn, kOutputGradient, kInput, kAddend };

// `of` has the norms and what they have read; the addends are null where they are empty.
struct WayBack {
  WayBack(const Backend& backend, int tokens, int dim, std::array<int, 2> heads) : of(backend, tokens, dim, heads) {
    for (size_t v = 0; v < 2; ++v) {
      output_gradients[v] = ref::rounded(backend, ref::random_values(of.inputs[v].size(), 5 + v));
      addends[v] = ref::rounded(backend, ref::random_values(of.inputs[v].size(), 7 + v));
    }
  }
  TwoVectors of;
  std::array<std::vector<float>, 2> output_gradients, addends;
};

// All operands but the angles begin at element `first` of their memory.
std::array<std::vector<float>, 2> run_back(Backend& backend, const WayBack& way, Place place = Place::kOwn,
                                           int64_t first = 0) {
  struct Operands {
    Tensor output_gradient, addend, norm, input, own;
  };
  const auto moved = [&](std::vector<float> values, float before) {
    values.insert(values.begin(), static_cast<size_t>(first), before);
    return ref::upload_activations(backend, values);
  };
  std::vector<Operands> operands;
  std::vector<Tensor*> gradients;
  for (size_t v = 0; v < 2; ++v) {
    operands.push_back({moved(way.output_gradients[v], NAN), moved(way.addends[v], NAN), moved(way.of.norms[v], NAN),
                        moved(way.of.inputs[v], NAN), moved(std::vector<float>(way.of.inputs[v].size() + 8, 7), 7)});
  }
  const Tensor p = ref::upload_array(backend, way.of.positions), f = ref::upload_array(backend, way.of.inv_freq);
  const auto vectors = [&](size_t v) {
    Operands& o = operands[v];
    Tensor* const places[] = {&o.own, &o.output_gradient, &o.input, &o.addend};
    gradients.push_back(places[static_cast<size_t>(place)]);
    return RopeGradients{.output_gradient = o.output_gradient.at(first),
                         .addend = way.addends[v].empty() ? ConstRef{} : o.addend.at(first),
                         .norm = way.of.norms[v].empty() ? ConstRef{} : o.norm.at(first),
                         .input = way.of.norms[v].empty() ? ConstRef{} : o.input.at(first),
                         .input_gradient = gradients.back()->at(first),
                         .heads = way.of.heads[v]};
  };
  const RopeGradients queries = vectors(0), keys = vectors(1);
  backend.rope_backward({.vectors = {queries, keys}, .angles = angles_of(p, f, 1.25f), .norm_epsilon = kEpsilon});
  std::array<std::vector<float>, 2> got;
  for (size_t v = 0; v < 2; ++v) {
    const std::vector<float> all = ref::download_activations(*gradients[v]);
    const auto count = std::ssize(way.of.inputs[v]);
    got[v] = ref::slice(all, first, count);
    if (place != Place::kOwn) continue;
    EXPECT_EQ(ref::slice(all, 0, first), std::vector<float>(static_cast<size_t>(first), 7));
    EXPECT_EQ(ref::slice(all, first + count, 8), std::vector<float>(8, 7));
  }
  return got;
}

// Of vectors `v`: with the norm of the reference, or without.
void check_back(const Backend& backend, const WayBack& way, size_t v, const std::vector<float>& got) {
  const TwoVectors& of = way.of;
  const size_t half = of.inv_freq.size();
  std::vector<double> turned =
      ref::rope_backward(way.output_gradients[v], of.positions, of.inv_freq, of.heads[v], 1.25);
  std::vector<double> magnitudes(turned.size());
  for (size_t i = 0; i < turned.size(); ++i) {
    const size_t pair = i % (2 * half) < half ? i + half : i - half;
    const double more = way.addends[v].empty() ? 0 : way.addends[v][i];
    magnitudes[i] = 1.25 * (std::abs(way.output_gradients[v][i]) + std::abs(way.output_gradients[v][pair]));
    magnitudes[i] += std::abs(more);
    turned[i] += more;
  }
  // Cosine, its factor, two products, a sum and the addend's; what is turned may be stored, and is f32 below.
  double roundings = 6 + ref::storage_roundings(backend);
  if (!of.norms[v].empty()) {
    const auto floats = [](const std::vector<double>& values) {
      return std::vector<float>(values.begin(), values.end());
    };
    const auto absolute = [](std::vector<float> values) {
      for (float& value : values) value = std::abs(value);
      return values;
    };
    const std::vector<float>&input = of.inputs[v], &norm = of.norms[v];
    // An error of what is turned comes out as such a gradient would, without what cancels.
    magnitudes = ref::rms_norm_backward(floats(magnitudes), absolute(input), absolute(norm), kEpsilon).magnitudes;
    turned = ref::rms_norm_backward(floats(turned), input, norm, kEpsilon).values;
    roundings += 1 + ref::rms_norm_backward_roundings(of.dim) + ref::storage_roundings(backend);
  }
  ASSERT_EQ(got.size(), turned.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(ref::is_close(got[i], turned[i], {.roundings = roundings, .magnitude = magnitudes[i]}))
        << "vectors " << v << ", element " << i;
  }
}

TEST_P(Rope, BackwardGoesOnThroughANormOfEveryHead) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [tokens, dim] : std::vector<std::array<int, 2>>{
           {0, 64}, {1, 128}, {7, 64}, {300, 64}, {3, 256}, {5, 512}, {2, 1024}, {9, 80}, {40, 20}, {2, 16}}) {
    for (const std::array<int, 2> heads : {std::array{4, 1}, {9, 3}, {70, 2}}) {
      for (const size_t without : {0, 1, 2}) {
        SCOPED_TRACE(::testing::Message() << tokens << " x " << heads[0] << ", " << heads[1] << " x " << dim
                                          << ", without a norm: " << without);
        WayBack way(*backend, tokens, dim, heads);
        if (without < 2) way.of.norms[without].clear();
        if (without == 1) way.addends[0].clear();
        if (without == 2) way.addends[1].clear();
        const std::array<std::vector<float>, 2> got = run_back(*backend, way);
        for (size_t v = 0; v < 2; ++v) check_back(*backend, way, v, got[v]);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Rope, BackwardMayWriteOverWhatItReads) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int dim : {64, 80, 128}) {
    const WayBack way(*backend, 50, dim, {9, 3});
    const std::array<std::vector<float>, 2> apart = run_back(*backend, way);
    for (const Place place : {Place::kOutputGradient, Place::kInput, Place::kAddend}) {
      EXPECT_EQ(run_back(*backend, way, place), apart) << dim << ", place " << static_cast<int>(place);
    }
  }
}

TEST_P(Rope, GradientsMayLieElsewhere) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t first : {1, 8}) {
    for (const size_t without : {0, 1, 2}) {
      SCOPED_TRACE(::testing::Message() << "from element " << first << ", without a norm: " << without);
      WayBack way(*backend, 50, 64, {9, 3});
      if (without < 2) way.of.norms[without].clear();
      const std::array<std::vector<float>, 2> got = run_back(*backend, way, Place::kOwn, first);
      for (size_t v = 0; v < 2; ++v) check_back(*backend, way, v, got[v]);
    }
  }
}

TEST_P(Rope, BackwardThroughANormByHand) {
  KV_BACKEND_OR_SKIP(backend);
  // (0, 4) turned by −90° is (4, 0); with (1, 0) it is (5, 0). The rest as in RmsNorm.BackwardByHand.
  const float quarter = static_cast<float>(std::numbers::pi / 2);
  Tensor gradient = ref::upload_activations(*backend, {0, 4});
  const Tensor addend = ref::upload_activations(*backend, {1, 0}), input = ref::upload_activations(*backend, {1, 7});
  const Tensor norm = ref::upload_activations(*backend, {5, 10});
  const Tensor position = ref::upload_array(*backend, std::vector<int32_t>{1});
  const Tensor inv_freq = ref::upload_array(*backend, std::vector<float>{quarter});
  backend->rope_backward({.vectors = {{.output_gradient = gradient.ref(),
                                       .addend = addend.ref(),
                                       .norm = norm.ref(),
                                       .input = input.ref(),
                                       .input_gradient = gradient.ref(),
                                       .heads = 1}},
                          .angles = angles_of(position, inv_freq, 1),
                          .norm_epsilon = 1e-12f});
  ref::expect_close(ref::download_activations(gradient), std::vector<double>{4.9, -0.7},
                    {.roundings = 24 + 2 * ref::storage_roundings(*backend), .magnitude = 5});
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
    return run_back(*backend, input, positions, {1.0f, 0.1f}, 2, 1.25f);
  };
  EXPECT_EQ(with_threads(1), with_threads(2));
}

}  // namespace
}  // namespace kv
