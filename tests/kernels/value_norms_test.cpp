#include "kernels/value_norms.h"

#include "tests/ref/value_norms.h"
#include "tests/support/close.h"
#include "tests/support/largest.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, ValueNorms);

TEST_P(ValueNorms, AreLengthsOfValuesTimesTheirWeights) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::PagedCache cache(*backend, {.kv_heads = 1,
                                         .head_dim = 2,
                                         .keys = {{9, 9, 9, 9, 9, 9}},
                                         .values = {{3, 4, 0, 0, -6, 8}},
                                         .positions = {{0, 1, 2}},
                                         .columns = {{}}});
  Tensor scores = ref::upload_array<float>(*backend, {0.5F, 2, 0.25F});
  backend->value_norms({.cache = cache.view(), .weights = scores.slots<float>(3), .scores = scores.slots<float>(3)});
  EXPECT_EQ(ref::download_array<float>(scores), (std::vector<float>{2.5F, 0, 2.5F}));
  backend->value_norms({.cache = cache.view(), .scores = scores.slots<float>(3)});
  EXPECT_EQ(ref::download_array<float>(scores), (std::vector<float>{5, 0, 10}));
}

TEST_P(ValueNorms, AgreeWithDoubleArithmeticAndSkipRowsNotDue) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int dim : {1, 20, 64, 256}) {
    const ref::PagedCache cache(*backend, ref::random_rows({1, 0, 15, 16, 17, 33, 256, 257}, 2, dim, 4), 2);
    const ref::CacheRows& rows = cache.rows();
    const int64_t pitch = 264;
    const std::vector<uint8_t> due = {1, 1, 0, 1, 1, 1, 0, 1};
    Tensor device_due = ref::upload_array(*backend, due), scores(*backend, DType::kF32, rows.rows() * pitch);
    std::vector<float> weights;
    for (int64_t i = 0; i < rows.rows() * pitch; ++i) weights.push_back(static_cast<float>(i % 7) / 4);
    Tensor device_weights = ref::upload_array(*backend, weights);
    backend->value_norms({.cache = cache.view(),
                          .rows_due = ref::data_of<uint8_t>(device_due),
                          .weights = device_weights.slots<float>(pitch),
                          .scores = scores.slots<float>(pitch)});
    const std::vector<float> got = ref::download_array<float>(scores);
    for (int64_t row = 0; row < rows.rows(); ++row) {
      const int64_t count = due[static_cast<size_t>(row)] ? rows.length(row) : 0;
      if (count > 0) {
        const std::vector<double> want =
            ref::value_norms(rows.values[static_cast<size_t>(row)], dim, ref::slice(weights, row * pitch, count));
        // A sum of dim squares, its root and a product.
        ref::expect_close(ref::slice(got, row * pitch, count), want,
                          {.roundings = dim + 3.0, .magnitude = ref::largest(want)});
      }
      ref::expect_untouched(got, row * pitch + count, (row + 1) * pitch);
    }
  }
}

}  // namespace
}  // namespace kv
