#include "kernels/redundancy.h"

#include <algorithm>

#include "tests/ref/redundancy.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Redundancy);

using Retain = RedundancyArgs::Retain;

std::vector<float> redundancy(Backend& backend, const ref::PagedCache& cache, RedundancyArgs args, int64_t pitch,
                              const std::vector<uint8_t>& due) {
  Tensor device_due = ref::upload_array(backend, due), scores(backend, DType::kF32, cache.rows().rows() * pitch);
  args.cache = cache.view();
  args.rows_due = due.empty() ? nullptr : ref::data_of<uint8_t>(device_due);
  args.scores = scores.slots<float>(pitch);
  backend.redundancy(args);
  backend.synchronize();
  return ref::download_array<float>(scores);
}

// Rows whose keys scatter around a few centres: similar pairs near and far, and some keys similar to none.
ref::CacheRows clustered_rows(const std::vector<int32_t>& lengths, int kv_heads, int dim, int centres) {
  ref::CacheRows rows = ref::random_rows(lengths, kv_heads, dim, 9);
  const std::vector<float> centre = ref::random_values(static_cast<size_t>(centres) * dim, 10);
  for (int64_t row = 0; row < rows.rows(); ++row) {
    for (int64_t slot = 0; slot < rows.length(row); ++slot) {
      if (slot % 7 == 3) continue;
      const int64_t from = (slot * slot + row) % centres;
      for (int d = 0; d < dim; ++d) {
        rows.keys[row][slot * dim + d] = centre[from * dim + d] + 0.6f * rows.keys[row][slot * dim + d];
      }
    }
  }
  return rows;
}

void expect_agreement(Backend& backend, const ref::CacheRows& rows, const RedundancyArgs& args,
                      const std::vector<uint8_t>& due) {
  const ref::PagedCache cache(backend, rows, 1);
  const int64_t pitch = rows.max_length() + 2;
  const std::vector<float> got = redundancy(backend, cache, args, pitch, due);
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const int64_t count = due.empty() || due[row] ? rows.length(row) : 0;
    const int kth =
        args.retain == Retain::kLast ? 1 : std::max(1, static_cast<int>(static_cast<float>(count) * args.retain_ratio));
    const ref::Redundancy want = ref::redundancy(ref::slice(cache.rows().keys[row], 0, count * rows.head_dim),
                                                 rows.head_dim, args.threshold, kth);
    // The mean is a sum of terms of at most one in all, each a dot of dim products; the softmax passes its error on as
    // a relative one and adds the exponential and the sum over slots.
    const double largest = count ? *std::max_element(want.score.begin(), want.score.end()) : 0;
    ref::expect_close(ref::slice(got, row * pitch, count), want.score,
                      {.roundings = 3.0 * rows.head_dim + count / 16.0 + 8, .magnitude = largest});
    ref::expect_untouched(got, row * pitch + count, (row + 1) * pitch);
  }
}

TEST(RedundancyReference, GivesTheVectorOfThePaperSheet) {
  const ref::Redundancy r = ref::redundancy({1, 0, .9f, .1f, 0, 1, .1f, .9f, 1, .05f}, 2, 0.5, 1);
  EXPECT_EQ(r.retained, (std::vector<int>{4, 4, 3, 2, 1}));
  const std::vector<double> mean = {0.420614, 0.264765, 0.032074, 0.097974, 0.041973};
  const std::vector<double> score = {0.253629, 0.217028, 0.171972, 0.183687, 0.173683};
  for (int j = 0; j < 5; ++j) {
    EXPECT_NEAR(r.mean[j], mean[j], 0.6e-6);
    EXPECT_NEAR(r.score[j], score[j], 0.6e-6);
  }
}

TEST_P(Redundancy, GivesTheVectorOfThePaperSheet) {
  KV_BACKEND_OR_SKIP(backend);
  ref::CacheRows rows = ref::random_rows({5}, 1, 16, 1);
  std::fill(rows.keys[0].begin(), rows.keys[0].end(), 0.0f);
  const float keys[5][2] = {{1, 0}, {.9f, .1f}, {0, 1}, {.1f, .9f}, {1, .05f}};
  for (int j = 0; j < 5; ++j) std::copy_n(keys[j], 2, rows.keys[0].begin() + j * 16);
  const ref::PagedCache cache(*backend, rows);
  const std::vector<float> got = redundancy(*backend, cache, {}, 5, {});
  const double want[] = {0.253629, 0.217028, 0.171972, 0.183687, 0.173683};
  // Printed to six digits; below f32 the inputs themselves are rounded (0.9 is off by up to epsilon/2).
  const double allowed = 0.6e-6 + (backend->activation_type() == DType::kF32 ? 0 : ref::activation_epsilon(*backend));
  for (int j = 0; j < 5; ++j) EXPECT_NEAR(got[j], want[j], allowed);
}

TEST_P(Redundancy, AgreesWithTheWholeSimilarityMatrix) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int dim : {16, 64}) {
    expect_agreement(*backend, clustered_rows({1, 2, 15, 16, 17, 63, 64, 65, 127, 300}, 2, dim, 5), {}, {});
    expect_agreement(*backend, clustered_rows({256, 257, 320, 513}, 1, dim, 40), {}, {});
    // Hardly any pair is similar: rows without one forgive entry 0.
    expect_agreement(*backend, ref::random_rows({1, 2, 200}, 1, dim, 3), {}, {});
  }
}

TEST_P(Redundancy, AgreesForOtherThresholds) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::CacheRows rows = clustered_rows({40, 130}, 1, 16, 5);
  for (const float threshold : {-0.2f, 0.0f, 0.9f, 2.0f})
    expect_agreement(*backend, rows, {.cache = {}, .threshold = threshold}, {});
}

TEST_P(Redundancy, RetainsTheOlderOfManyWithLastPercent) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::CacheRows rows = clustered_rows({1, 4, 65, 300}, 2, 64, 3);
  for (const float ratio : {0.01f, 0.05f, 0.2f, 0.9f}) {
    expect_agreement(*backend, rows, {.cache = {}, .retain = Retain::kLastPercent, .retain_ratio = ratio}, {});
  }
}

TEST_P(Redundancy, LeavesRowsThatAreNotDueAlone) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agreement(*backend, clustered_rows({10, 20, 30, 40}, 2, 16, 3), {}, {0, 1, 0, 1});
}

TEST_P(Redundancy, SurvivesZeroKeys) {
  KV_BACKEND_OR_SKIP(backend);
  // A zero key is similar to nothing, itself included; beside it, keys that are similar to each other.
  ref::CacheRows rows = ref::random_rows({4, 4}, 1, 16, 1);
  for (std::vector<float>& keys : rows.keys) std::fill(keys.begin(), keys.end(), 0.0f);
  rows.keys[1][16] = rows.keys[1][2 * 16] = 3;
  expect_agreement(*backend, rows, {}, {});
}

TEST(RedundancyOnTheThreshold, IsDecidedAsInDouble) {
  const auto backend = ref::try_backend("cpu");
  // Keys 1… have a cosine with key 0 that f32 arithmetic cannot tell from one half; a wrong decision would move a mean
  // by 0.5 / n.
  const int count = 150, dim = 64;
  ref::CacheRows rows = ref::random_rows({count}, 1, dim, 11);
  std::vector<float>& keys = rows.keys[0];
  std::fill_n(keys.begin(), dim, 0.0f);
  keys[0] = 1;
  for (int j = 1; j < count; ++j) {
    double square = 0;
    for (int d = 1; d < dim; ++d) square += double(keys[j * dim + d]) * keys[j * dim + d];
    keys[j * dim] = static_cast<float>(std::sqrt(square / 3));
  }
  int above = 0, close = 0;
  for (int j = 1; j < count; ++j) {
    double square = 0;
    for (int d = 0; d < dim; ++d) square += double(keys[j * dim + d]) * keys[j * dim + d];
    const double cosine = keys[j * dim] / (std::sqrt(square) + 1e-8) / (1 + 1e-8);
    above += cosine > 0.5;
    close += std::abs(cosine - 0.5) < 1e-7;
  }
  ASSERT_EQ(close, count - 1);
  ASSERT_GT(above, 10);
  ASSERT_LT(above, count - 10);
  expect_agreement(*backend, rows, {}, {});
}

TEST(RedundancyThreads, DoNotChangeABit) {
  const auto backend = ref::try_backend("cpu");
  const ref::PagedCache cache(*backend, clustered_rows({300, 300, 300, 300}, 2, 64, 20));
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    const ref::Threads limit(threads);
    results.push_back(redundancy(*backend, cache, {}, 300, {}));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace kv
