#include "kernels/attention_columns.h"

#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, AttentionColumns);

const std::vector<int32_t> kLengths = {0, 1, 15, 16, 17, 257};  // 3 sequences of 2 KV heads
constexpr int64_t kPitch = 264;
constexpr int kGroup = 2;
constexpr int kWidth = 3 * kGroup + 1;  // one column more, which nobody may touch

TEST_P(AttentionColumns, TakeABlocksSumsByWhereItBegins) {
  KV_BACKEND_OR_SKIP(backend);
  ref::PagedCache cache(*backend, ref::random_rows(kLengths, 2, 16, 5, kWidth));
  const std::vector<float> sums = ref::random_values(kLengths.size() * kGroup * kPitch, 9);
  const Tensor device_sums = ref::upload_array(*backend, sums);
  // Sequence 0 has ended; 1 begins before position 8, 2 at it.
  Tensor words = ref::upload_segments(*backend, {{2, 0, 1, 8}, {0, 1, 0, 9}, {1, 1, 3, 7}});
  backend->attention_columns_add({.cache = cache.view(),
                                  .segments = ref::segments_of(words),
                                  .segment_count = 3,
                                  .sums = device_sums.slots<float>(kPitch),
                                  .group = kGroup,
                                  .early_tokens = 8,
                                  .pool_columns = cache.pool_columns()});
  std::vector<std::vector<float>> want = cache.rows().columns;
  for (size_t row = 2; row < kLengths.size(); ++row) {
    for (int32_t slot = 0; slot < kLengths[row]; ++slot) {
      for (int h = 0; h < kGroup; ++h) {
        const float sum = sums[(row * kGroup + h) * kPitch + slot];
        float* columns = &want[row][slot * kWidth];
        if (row < 4) columns[h] += sum, columns[kGroup + h] += sum;
        if (row >= 4) columns[2 * kGroup + h] += sum;
      }
    }
  }
  EXPECT_EQ(cache.download().columns, want);
}

TEST_P(AttentionColumns, CanTakeAllAsEarly) {
  KV_BACKEND_OR_SKIP(backend);
  ref::PagedCache cache(*backend, ref::random_rows({20}, 1, 16, 5, 2));
  const std::vector<float> sums = ref::random_values(kPitch, 9);
  const Tensor device_sums = ref::upload_array(*backend, sums);
  Tensor words = ref::upload_segments(*backend, {{0, 0, 1, 1 << 20}});
  backend->attention_columns_add({.cache = cache.view(),
                                  .segments = ref::segments_of(words),
                                  .segment_count = 1,
                                  .sums = device_sums.slots<float>(kPitch),
                                  .early_tokens = AttentionColumnsAddArgs::kAllEarly,
                                  .pool_columns = cache.pool_columns()});
  std::vector<float> want = cache.rows().columns[0];
  for (size_t i = 0; i < want.size(); ++i) want[i] += sums[i / 2];
  EXPECT_EQ(cache.download().columns[0], want);
}

TEST_P(AttentionColumns, FoldAtAnEventAndBecomeFeatures) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kPlanes = 8, kFirst = 1;
  ref::PagedCache cache(*backend, ref::random_rows(kLengths, 2, 16, 5, kWidth));
  const std::vector<uint8_t> due = {1, 1, 0, 1, 1, 1};
  Tensor device_due = ref::upload_array(*backend, due);
  Tensor features(*backend, DType::kF32, std::ssize(kLengths) * kPlanes * kPitch);
  backend->attention_columns_fold({.cache = cache.view(),
                                   .rows_due = ref::data_of<uint8_t>(device_due),
                                   .group = kGroup,
                                   .decay = 0.75F,
                                   .pool_columns = cache.pool_columns(),
                                   .features = features.slots<float>(kPitch),
                                   .planes = kPlanes,
                                   .first_plane = kFirst});
  const std::vector<float> got = ref::download_array<float>(features);
  const std::vector<std::vector<float>> before = cache.rows().columns, after = cache.download().columns;
  for (int64_t row = 0; row < std::ssize(kLengths); ++row) {
    if (!due[row]) {
      EXPECT_EQ(after[row], before[row]);
    }
    const int64_t count = due[row] ? kLengths[row] : 0;
    for (int plane = 0; plane < kPlanes; ++plane) {
      const bool is_feature = plane >= kFirst && plane < kFirst + 3 * kGroup;
      const int64_t at = (row * kPlanes + plane) * kPitch;
      ref::expect_untouched(got, at + (is_feature ? count : 0), at + kPitch);
    }
    for (int64_t slot = 0; slot < count; ++slot) {
      const float *was = &before[row][slot * kWidth], *is = &after[row][slot * kWidth];
      EXPECT_EQ(is[kWidth - 1], was[kWidth - 1]);
      for (int h = 0; h < kGroup; ++h) {
        const double recent = was[2 * kGroup + h];
        const auto feature = [&](int index) {
          return got[(row * kPlanes + kFirst + index * kGroup + h) * kPitch + slot];
        };
        EXPECT_EQ(feature(0), recent);
        // A product and a sum of numbers below 1.
        ref::expect_close(feature(1), was[h] + recent, {.roundings = 2});
        ref::expect_close(feature(2), 0.75 * was[kGroup + h] + recent, {.roundings = 2});
        EXPECT_EQ(is[h], feature(1));
        EXPECT_EQ(is[kGroup + h], feature(2));
        EXPECT_EQ(is[2 * kGroup + h], 0);
      }
    }
  }
}

// The interval's sums come from elsewhere, in the first feature; of row 1 they are in both columns already.
TEST_P(AttentionColumns, FoldSumsThatAreGiven) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kTwoColumns = 2 * kGroup, kCopies = 4, kPlanes = (kCopies + 2) * kGroup;
  const std::vector<int32_t> lengths = {40, 17};
  ref::PagedCache cache(*backend, ref::random_rows(lengths, 2, 16, 5, kTwoColumns));
  const std::vector<float> given = ref::random_values(std::ssize(lengths) * kPlanes * kPitch, 3);
  Tensor features = ref::upload_array(*backend, given);
  Tensor counted = ref::upload_array(*backend, std::vector<uint8_t>{0, 1});
  backend->attention_columns_fold({.cache = cache.view(),
                                   .group = kGroup,
                                   .decay = 0.75F,
                                   .has_recent = false,
                                   .rows_counted = ref::data_of<uint8_t>(counted),
                                   .pool_columns = cache.pool_columns(),
                                   .features = features.slots<float>(kPitch),
                                   .planes = kPlanes,
                                   .recent_planes = kCopies});
  const std::vector<float> got = ref::download_array<float>(features);
  const std::vector<std::vector<float>> before = cache.rows().columns, after = cache.download().columns;
  for (int64_t row = 0; row < std::ssize(lengths); ++row) {
    for (int64_t slot = 0; slot < lengths[row]; ++slot) {
      for (int h = 0; h < kGroup; ++h) {
        const auto at = [&](int64_t f) { return (row * kPlanes + f * kGroup + h) * kPitch + slot; };
        const double recent = given[at(0)], again = row == 1 ? recent : 0;
        for (int64_t copy = 0; copy < kCopies; ++copy) EXPECT_EQ(got[at(copy)], given[at(0)]);
        const float* was = &before[row][slot * kTwoColumns];
        ref::expect_close(got[at(kCopies)], was[h] + recent - again, {.roundings = 3});
        ref::expect_close(got[at(kCopies + 1)], 0.75 * (was[kGroup + h] - again) + recent, {.roundings = 4});
        EXPECT_EQ(after[row][slot * kTwoColumns + h], got[at(kCopies)]);
        EXPECT_EQ(after[row][slot * kTwoColumns + kGroup + h], got[at(kCopies + 1)]);
      }
    }
  }
}

}  // namespace
}  // namespace kv
