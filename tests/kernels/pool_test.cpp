#include "kernels/pool.h"

#include "tests/ref/pool.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Pool);

std::vector<float> pooled(Backend& backend, PoolArgs::Kind kind, int kernel, const std::vector<float>& values) {
  const int32_t count = static_cast<int32_t>(values.size());
  Tensor input = ref::upload_array(backend, values), output(backend, DType::kF32, count);
  Tensor lengths = ref::upload_array<int32_t>(backend, {count});
  backend.pool({.kind = kind,
                .kernel = kernel,
                .input = input.slots<float>(count),
                .output = output.slots<float>(count),
                .lengths = ref::data_of<int32_t>(lengths),
                .rows = 1});
  backend.synchronize();
  return ref::download_array<float>(output);
}

TEST_P(Pool, MaximumIgnoresWhatLiesBeyondTheEdges) {
  KV_BACKEND_OR_SKIP(backend);
  // Negative values: a zero pad would win at the edges.
  EXPECT_EQ(pooled(*backend, PoolArgs::Kind::kMax, 3, {-4, -3, -5, -1, -2}), (std::vector<float>{-3, -3, -1, -1, -1}));
}

TEST_P(Pool, AverageCountsZerosBeyondTheEdges) {
  KV_BACKEND_OR_SKIP(backend);
  // Kernel 3: (0+3+6)/3, (3+6+9)/3, (6+9+0)/3.
  EXPECT_EQ(pooled(*backend, PoolArgs::Kind::kAverage, 3, {3, 6, 9}), (std::vector<float>{3, 6, 5}));
}

TEST_P(Pool, AgreesWithBruteForceForRaggedVectorsAndKernelsLongerThanThem) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<int32_t> lengths = {0, 1, 2, 3, 4, 7, 8, 16, 17, 63, 64, 65, 200};
  const int64_t rows = static_cast<int64_t>(lengths.size()), pitch = 208;
  const int vectors = 2, drop = 1;
  std::vector<float> input = ref::random_values(rows * vectors * pitch, 3);
  for (int64_t vector = 0; vector < rows * vectors; ++vector) {
    // What is beyond the vector must not matter.
    for (int64_t j = std::max(0, lengths[vector / vectors] - drop); j < pitch; ++j) input[vector * pitch + j] = NAN;
  }
  Tensor device = ref::upload_array(*backend, input), device_lengths = ref::upload_array(*backend, lengths);
  for (const int kernel : {1, 3, 5, 7, 31}) {
    for (const auto kind : {PoolArgs::Kind::kMax, PoolArgs::Kind::kAverage}) {
      Tensor output(*backend, DType::kF32, rows * vectors * pitch);
      backend->pool({.kind = kind,
                     .kernel = kernel,
                     .input = device.slots<float>(pitch),
                     .output = output.slots<float>(pitch),
                     .lengths = ref::data_of<int32_t>(device_lengths),
                     .rows = rows,
                     .vectors_per_row = vectors,
                     .drop_newest = drop});
      backend->synchronize();
      const std::vector<float> got = ref::download_array<float>(output);
      for (int64_t vector = 0; vector < rows * vectors; ++vector) {
        const int64_t count = std::max(0, lengths[vector / vectors] - drop);
        const std::vector<float> values = ref::slice(input, vector * pitch, count);
        // Max is exact; the average sums `kernel` values and divides once.
        const bool max = kind == PoolArgs::Kind::kMax;
        ref::expect_close(ref::slice(got, vector * pitch, count),
                          max ? ref::pool_max(values, kernel) : ref::pool_average(values, kernel),
                          {.roundings = max ? 0.0 : kernel + 1.0});
        ref::expect_untouched(got, vector * pitch + count, (vector + 1) * pitch);
      }
    }
  }
}

TEST_P(Pool, GroupMeanAveragesTheQueryHeadsOfARow) {
  KV_BACKEND_OR_SKIP(backend);
  // Two rows of two heads, pitch 3; the second row has one slot.
  Tensor input = ref::upload_array<float>(*backend, {1, 2, 3, 5, 4, 3, 10, NAN, NAN, 20, NAN, NAN});
  Tensor lengths = ref::upload_array<int32_t>(*backend, {3, 1}), output(*backend, DType::kF32, 6);
  backend->group_mean({.input = input.slots<float>(3),
                       .output = output.slots<float>(3),
                       .lengths = ref::data_of<int32_t>(lengths),
                       .rows = 2,
                       .group = 2});
  backend->synchronize();
  const std::vector<float> got = ref::download_array<float>(output);
  EXPECT_EQ(ref::slice(got, 0, 4), (std::vector<float>{3, 3, 3, 15}));
  ref::expect_untouched(got, 4, 6);
}

}  // namespace
}  // namespace kv
