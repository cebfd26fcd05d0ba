#include "kernels/key_difference.h"

#include "tests/ref/key_difference.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, KeyDifference);

std::vector<float> key_difference(Backend& backend, const ref::PagedCache& cache, int64_t pitch,
                                  const std::vector<uint8_t>& due) {
  Tensor device_due = ref::upload_array(backend, due), scores(backend, DType::kF32, cache.rows().rows() * pitch);
  backend.key_difference({.cache = cache.view(),
                          .rows_due = due.empty() ? nullptr : ref::data_of<uint8_t>(device_due),
                          .scores = scores.slots<float>(pitch)});
  backend.synchronize();
  return ref::download_array<float>(scores);
}

TEST_P(KeyDifference, PrefersTheKeyThatPointsAwayFromTheOthers) {
  KV_BACKEND_OR_SKIP(backend);
  // Unit keys sum to (1, 2): cosines 2/√5, 1/√5, 2/√5; the length of the second key does not matter.
  ref::CacheRows rows{.kv_heads = 1,
                      .head_dim = 2,
                      .keys = {{0, 1, 5, 0, 0, 2}},
                      .values = {{0, 0, 0, 0, 0, 0}},
                      .positions = {{0, 1, 2}},
                      .columns = {{}}};
  const ref::PagedCache cache(*backend, rows);
  const std::vector<float> got = key_difference(*backend, cache, 3, {});
  const double fifth = 1 / std::sqrt(5.0);
  ref::expect_close(got, std::vector<double>{-2 * fifth, -fifth, -2 * fifth}, {.roundings = 4});
}

TEST_P(KeyDifference, AgreesWithDoubleArithmeticAndSkipsRowsNotDue) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int dim : {16, 64}) {
    const ref::CacheRows rows = ref::random_rows({1, 2, 15, 16, 17, 33, 64, 129}, 2, dim, 4);
    const ref::PagedCache cache(*backend, rows, 2);
    const int64_t pitch = 136;
    const std::vector<uint8_t> due = {1, 1, 0, 1, 1, 1, 0, 1};
    const std::vector<float> got = key_difference(*backend, cache, pitch, due);
    for (int64_t row = 0; row < rows.rows(); ++row) {
      const int64_t count = due[row] ? rows.length(row) : 0;
      if (count) {
        // A dot of dim products of unit vectors, each off by two roundings.
        ref::expect_close(ref::slice(got, row * pitch, count), ref::key_difference(cache.rows().keys[row], dim),
                          {.roundings = dim + 4.0});
      }
      ref::expect_untouched(got, row * pitch + count, (row + 1) * pitch);
    }
  }
}

}  // namespace
}  // namespace kv
