#include "kernels/rms_norm.h"

#include <cmath>

#include "tests/ref/rms_norm.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RmsNorm);

TEST_P(RmsNorm, MatchesTheReferenceOverShapes) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 8}, {1, 1}, {1, 15}, {3, 16}, {5, 17}, {40, 384}, {43, 385}, {1000, 64}, {2, 20000}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << width);
    const std::vector<float> input = ref::rounded(*backend, ref::random_values(rows * width, 1));
    const std::vector<float> weight = ref::rounded(*backend, ref::random_values(width, 2));
    const Tensor x = ref::upload_activations(*backend, input), w = ref::upload_activations(*backend, weight);
    Tensor output(*backend, backend->activation_type(), rows * width);
    backend->rms_norm(
        {.input = x.ref(), .weight = w.ref(), .output = output.ref(), .rows = rows, .width = width, .epsilon = 1e-3f});
    backend->synchronize();
    // The mean square has no cancellation: `width` roundings, halved by the root; root, division and two products.
    ref::expect_close(
        ref::download_activations(output), ref::rms_norm(input, weight, 1e-3),
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

}  // namespace
}  // namespace kv
