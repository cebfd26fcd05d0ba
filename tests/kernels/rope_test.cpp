#include "kernels/rope.h"

#include <array>
#include <cmath>
#include <numbers>

#include "tests/ref/rope.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Rope);

std::vector<float> run(Backend& backend, const std::vector<float>& input, const std::vector<int32_t>& positions,
                       const std::vector<float>& inv_freq, int heads, float factor) {
  Tensor x = ref::upload_activations(backend, input);
  const Tensor p = ref::upload_array(backend, positions), f = ref::upload_array(backend, inv_freq);
  backend.rope({.input = x.ref(),
                .positions = p.ref().as<int32_t>(),
                .inv_freq = f.ref().as<float>(),
                .output = x.ref(),
                .tokens = static_cast<int64_t>(positions.size()),
                .heads = heads,
                .head_dim = static_cast<int>(2 * inv_freq.size()),
                .attention_factor = factor});
  backend.synchronize();
  return ref::download_activations(x);
}

TEST_P(Rope, MatchesTheReferenceInPlaceOverShapes) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [tokens, heads, dim] : std::vector<std::array<int, 3>>{
           {0, 1, 2}, {1, 1, 2}, {3, 2, 16}, {63, 3, 64}, {64, 1, 80}, {65, 8, 128}, {200, 4, 64}}) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << heads << " x " << dim);
    const std::vector<float> input =
        ref::rounded(*backend, ref::random_values(static_cast<size_t>(tokens) * heads * dim, 1));
    std::vector<int32_t> positions;
    for (int t = 0; t < tokens; ++t) positions.push_back(t % 3 == 0 ? t * 641 : t);  // far positions among near ones
    std::vector<float> inv_freq;
    for (int d = 0; d < dim / 2; ++d) inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(d) / dim));
    // Cosine, its factor, two products and a sum.
    ref::expect_close(run(*backend, input, positions, inv_freq, heads, 1.25f),
                      ref::rope(input, positions, inv_freq, heads, 1.25),
                      {.roundings = 5 + ref::storage_roundings(*backend), .magnitude = 2.5});
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

}  // namespace
}  // namespace kv
