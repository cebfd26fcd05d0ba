#include "kernels/projected_norms.h"

#include "tests/ref/projected_norms.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, ProjectedNorms);

struct Case {
  int64_t tokens = 1;
  int q_heads = 1;
  int kv_heads = 1;
  int dim = 16;
  int64_t width = 16;
};

std::vector<float> projected_norms(Backend& backend, const Case& c, const std::vector<float>& values,
                                   const std::vector<float>& weight) {
  Tensor device_values = ref::upload_activations(backend, values),
         device_weight = ref::upload_activations(backend, weight);
  Tensor norms(backend, DType::kF32, c.tokens * c.q_heads);
  backend.projected_norms({.values = device_values.ref(),
                           .output_weight = device_weight.ref(),
                           .norms = ref::data_of<float>(norms),
                           .tokens = c.tokens,
                           .q_heads = c.q_heads,
                           .kv_heads = c.kv_heads,
                           .head_dim = c.dim,
                           .width = c.width});
  backend.synchronize();
  return ref::download_array<float>(norms);
}

TEST_P(ProjectedNorms, AgreeWithTheProjectionItself) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Case& c : {Case{}, Case{.tokens = 17, .q_heads = 4, .kv_heads = 2, .dim = 16, .width = 33},
                        Case{.tokens = 257, .q_heads = 8, .kv_heads = 4, .dim = 64, .width = 96},
                        Case{.tokens = 3, .q_heads = 6, .kv_heads = 2, .dim = 32, .width = 200},
                        Case{.tokens = 130, .q_heads = 2, .dim = 80, .width = 60},
                        Case{.tokens = 40, .q_heads = 4, .kv_heads = 2, .dim = 128, .width = 140},
                        Case{.tokens = 5, .q_heads = 2, .dim = 256, .width = 40}}) {
    const std::vector<float> values = ref::rounded(*backend, ref::random_values(c.tokens * c.kv_heads * c.dim, 1));
    const std::vector<float> weight = ref::rounded(*backend, ref::random_values(c.width * c.q_heads * c.dim, 2));
    const std::vector<float> got = projected_norms(*backend, c, values, weight);
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int h = 0; h < c.q_heads; ++h) {
        const int64_t from = (t * c.kv_heads + h / (c.q_heads / c.kv_heads)) * c.dim;
        const double want = ref::projected_norm(ref::slice(values, from, c.dim), weight, h, c.q_heads);
        // The square is a sum of dim² Gram entries, each below width: off by (width + 2·dim) roundings of dim²·width at
        // worst, and by its root when signs are random, as here; a square root halves a relative error.
        const double magnitude = std::sqrt(double(c.dim) * c.dim * c.width) / want;
        ref::expect_close(got[t * c.q_heads + h], want,
                          {.roundings = double(c.width + 2 * c.dim), .magnitude = std::max(want, magnitude)});
      }
    }
  }
}

TEST_P(ProjectedNorms, ReadTheColumnsOfTheirHead) {
  KV_BACKEND_OR_SKIP(backend);
  // Head h's 16 columns are h + 2 times the identity (width 16), so its norm is (h + 2)·‖v‖, ‖v‖ = 5.
  const Case c{.q_heads = 2};
  std::vector<float> weight(16 * 32);
  for (int d = 0; d < 16; ++d) {
    weight[d * 32 + d] = 2;
    weight[d * 32 + 16 + d] = 3;
  }
  std::vector<float> value(16);
  value[0] = 3;
  value[15] = -4;
  EXPECT_EQ(projected_norms(*backend, c, value, weight), (std::vector<float>{10, 15}));
}

}  // namespace
}  // namespace kv
