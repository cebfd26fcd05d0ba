#include "kernels/column_add.h"

#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, ColumnAdd);

const std::vector<int32_t> kLengths = {0, 1, 15, 16, 17, 33};  // 3 sequences of 2 KV heads
constexpr int64_t kPitch = 40;
constexpr int kColumns = 5;

TEST_P(ColumnAdd, AddsToTheChosenColumnsOfActiveSequencesOnly) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{{0, 1}, {1, 2}, {2, 3}, {0, 5}}) {
    ref::PagedCache cache(*backend, ref::random_rows(kLengths, 2, 16, 5, kColumns));
    const std::vector<float> addend = ref::random_values(kLengths.size() * count * kPitch, 9);
    const Tensor device_addend = ref::upload_array(*backend, addend);
    // Sequence 1 has ended; sequence 2 comes first in the block.
    Tensor words = ref::upload_segments(*backend, {{2, 0, 1, 0}, {1, 1, 0, 0}, {0, 1, 1, 0}});
    backend->column_add({.cache = cache.view(),
                         .segments = ref::segments_of(words),
                         .segment_count = 3,
                         .addend = device_addend.slots<float>(kPitch),
                         .first = first,
                         .count = count,
                         .pool_columns = cache.pool_columns()});
    backend->synchronize();
    std::vector<std::vector<float>> want = cache.rows().columns;
    for (size_t row = 0; row < kLengths.size(); ++row) {
      if (row / 2 == 1) continue;
      for (int32_t slot = 0; slot < kLengths[row]; ++slot) {
        for (int g = 0; g < count; ++g) {
          want[row][slot * kColumns + first + g] += addend[(row * count + g) * kPitch + slot];
        }
      }
    }
    EXPECT_EQ(cache.download().columns, want);
  }
}

TEST_P(ColumnAdd, LeavesSequencesThatAreNotMarked) {
  KV_BACKEND_OR_SKIP(backend);
  ref::PagedCache cache(*backend, ref::random_rows(kLengths, 2, 16, 5, 1));
  const std::vector<float> addend = ref::random_values(kLengths.size() * kPitch, 9);
  const Tensor device_addend = ref::upload_array(*backend, addend);
  // Sequence 0 is marked but has no tokens, 1 has some and no mark.
  Tensor words = ref::upload_segments(*backend, {{2, 0, 1, 0}, {1, 1, 1, 0}, {0, 2, 0, 0}});
  Tensor marks = ref::upload_array(*backend, std::vector<uint8_t>{1, 0, 1});
  backend->column_add({.cache = cache.view(),
                       .segments = ref::segments_of(words),
                       .segment_count = 3,
                       .sequences = ref::data_of<uint8_t>(marks),
                       .addend = device_addend.slots<float>(kPitch),
                       .count = 1,
                       .pool_columns = cache.pool_columns()});
  std::vector<std::vector<float>> want = cache.rows().columns;
  for (size_t row = 4; row < 6; ++row) {
    for (int32_t slot = 0; slot < kLengths[row]; ++slot) want[row][slot] += addend[row * kPitch + slot];
  }
  EXPECT_EQ(cache.download().columns, want);
}

KV_OVER_BACKENDS(Ops, ColumnMean);

TEST_P(ColumnMean, AveragesTheChosenColumns) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{{0, 1}, {1, 2}, {0, 5}}) {
    ref::PagedCache cache(*backend, ref::random_rows(kLengths, 2, 16, 5, kColumns));
    Tensor scores(*backend, DType::kF32, static_cast<int64_t>(kLengths.size()) * kPitch);
    backend->column_mean(
        {.cache = cache.view(), .first = first, .count = count, .scores = scores.slots<float>(kPitch)});
    backend->synchronize();
    const std::vector<float> got = ref::download_array<float>(scores);
    for (size_t row = 0; row < kLengths.size(); ++row) {
      const auto at = static_cast<int64_t>(row) * kPitch;
      for (int32_t slot = 0; slot < kLengths[row]; ++slot) {
        double sum = 0;
        for (int g = 0; g < count; ++g) sum += cache.rows().columns[row][slot * kColumns + first + g];
        // count − 1 additions and the division, of values below 1.
        ref::expect_close(got[at + slot], sum / count, {.roundings = static_cast<double>(count)});
      }
      ref::expect_untouched(got, at + kLengths[row], at + kPitch);
    }
  }
}

}  // namespace
}  // namespace kv
