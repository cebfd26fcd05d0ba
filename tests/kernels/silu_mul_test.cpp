#include "kernels/silu_mul.h"

#include <cmath>

#include "tests/ref/silu_mul.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, SiluMul);

TEST_P(SiluMul, MatchesTheReferenceIncludingFarTails) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t count : {0, 1, 15, 16, 17, 16383, 16384, 16385, 40000}) {
    std::vector<float> gate = ref::random_values(count, 1);
    // The cube spreads values over [−200, 200], dense around 0: e^−x would overflow for a third of a percent of them.
    for (float& x : gate) x = 200 * x * x * x;
    gate = ref::rounded(*backend, gate);
    const std::vector<float> up = ref::rounded(*backend, ref::random_values(count, 2));
    const Tensor g = ref::upload_activations(*backend, gate);
    Tensor u = ref::upload_activations(*backend, up);
    backend->silu_mul({.gate = g.ref(), .up = u.ref(), .output = u.ref(), .count = count});
    backend->synchronize();
    const std::vector<float> got = ref::download_activations(u);
    for (int64_t i = 0; i < count; ++i) {
      // exp (2), sum, division and two products, relative to the result; below f32's normal range it may be 0.
      const double want = ref::silu_mul(gate[i], up[i]);
      ASSERT_TRUE(ref::is_close(
          got[i], want,
          {.roundings = 6 + ref::storage_roundings(*backend), .magnitude = std::max(std::abs(want), 1e-28)}))
          << "gate " << gate[i] << " up " << up[i];
    }
  }
}

}  // namespace
}  // namespace kv
