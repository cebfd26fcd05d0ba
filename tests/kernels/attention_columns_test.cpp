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
                                  .suffixes = {.first = 8},
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

// Sequence 1 is not marked; 2 is, but has no tokens.
TEST_P(AttentionColumns, CanTakeAllAsEarlyOfSomeSequences) {
  KV_BACKEND_OR_SKIP(backend);
  ref::PagedCache cache(*backend, ref::random_rows({20, 20, 20}, 1, 16, 5, 2));
  const std::vector<float> sums = ref::random_values(3 * kPitch, 9);
  const Tensor device_sums = ref::upload_array(*backend, sums);
  Tensor words = ref::upload_segments(*backend, {{0, 0, 1, 1 << 20}, {1, 1, 1, 9}, {2, 2, 0, 9}});
  Tensor marks = ref::upload_array(*backend, std::vector<uint8_t>{1, 0, 1});
  backend->attention_columns_add({.cache = cache.view(),
                                  .segments = ref::segments_of(words),
                                  .segment_count = 3,
                                  .sequences = ref::data_of<uint8_t>(marks),
                                  .sums = device_sums.slots<float>(kPitch),
                                  .suffixes = {.first = AttentionColumnsAddArgs::kAllEarly},
                                  .pool_columns = cache.pool_columns()});
  std::vector<std::vector<float>> want = cache.rows().columns;
  for (size_t i = 0; i < want[0].size(); ++i) want[0][i] += sums[i / 2];
  EXPECT_EQ(cache.download().columns, want);
}

// Token by token over several intervals, against sums in double over the tokens that an interval's suffixes name. Group
// 4 is read four columns at a time, 2 two, 3 one. Sequence 0 is two tokens ahead, 1 has a prompt that ends within an
// interval, 2 ends early; what stands in the columns before the first suffix begins is wiped by it, and after an event
// that did not come nothing of the interval before is left.
TEST_P(AttentionColumns, HaveTheSumsOfAnIntervalsLastTokens) {
  KV_BACKEND_OR_SKIP(backend);
  struct Shape {
    int group;
    Suffixes suffixes;
  };
  for (const auto& [group, suffixes] : std::vector<Shape>{{4, {5, 12, 3, {2, 5, 9}}},
                                                          {2, {5, 7, 3, {3, 7, 7}}},
                                                          {2, {0, 1, 3, {1, 1, 1}}},
                                                          {3, {5, 4, 2, {1, 2}}},
                                                          {1, {3, 6, 0, {}}}}) {
    const int width = (3 + suffixes.count) * group;
    ref::PagedCache cache(*backend, ref::random_rows(kLengths, 2, 16, 5, width));
    std::vector<std::vector<float>> before = cache.rows().columns;
    std::vector<std::vector<double>> want;
    for (const std::vector<float>& row : before) want.emplace_back(row.begin(), row.end());
    const int32_t starts[] = {suffixes.first + 2, suffixes.first - 1, suffixes.first};
    for (int32_t step = 0; step < 30; ++step) {
      std::vector<Segment> segments;
      for (int32_t s = 2; s >= 0; --s) segments.push_back({s, 2 - s, s == 2 && step > 9 ? 0 : 1, starts[s] + step});
      const std::vector<float> sums = ref::random_values(kLengths.size() * group * kPitch, 9 + step);
      const Tensor device_sums = ref::upload_array(*backend, sums);
      Tensor words = ref::upload_segments(*backend, segments);
      backend->attention_columns_add({.cache = cache.view(),
                                      .segments = ref::segments_of(words),
                                      .segment_count = 3,
                                      .sums = device_sums.slots<float>(kPitch),
                                      .group = group,
                                      .suffixes = suffixes,
                                      .pool_columns = cache.pool_columns()});
      for (const Segment& segment : segments) {
        const int32_t position = segment.first_position, place = position - suffixes.first;
        for (int64_t row = segment.sequence * 2; row < segment.sequence * 2 + 2 && segment.count > 0; ++row) {
          for (int64_t slot = 0; slot < kLengths[row]; ++slot) {
            for (int h = 0; h < group; ++h) {
              const double sum = sums[(row * group + h) * kPitch + slot];
              double* columns = &want[row][slot * width + h];
              if (place < 0) columns[0] += sum, columns[group] += sum;
              if (place >= 0) columns[2 * group] += sum;
              for (int k = 0; k < suffixes.count && place >= 0; ++k) {
                const int32_t begins = suffixes.interval - suffixes.of[k];
                if (place % suffixes.interval == begins) columns[(3 + k) * group] = 0;
                if (place % suffixes.interval >= begins) columns[(3 + k) * group] += sum;
              }
            }
          }
        }
      }
    }
    const std::vector<std::vector<float>> after = cache.download().columns;
    for (size_t row = 0; row < want.size(); ++row) {
      // Up to 30 numbers below 1 in turn.
      ref::expect_close(after[row], want[row], {.roundings = 30, .magnitude = 30});
    }
  }
}

// A block of several tokens brings each suffix its own sums: 1 ends with an interval and began before all of its
// suffixes, 2 with two tokens left, within the longest suffix alone, whose first token it does not have; 0 ends early.
TEST_P(AttentionColumns, GiveEachSuffixTheSumsOfItsTokens) {
  KV_BACKEND_OR_SKIP(backend);
  const Suffixes suffixes{10, 8, 3, {1, 2, 5}};
  for (const int group : {1, 2, 4}) {
    const int width = 6 * group;
    ref::PagedCache cache(*backend, ref::random_rows(kLengths, 2, 16, 5, width));
    const std::vector<float> sums = ref::random_values(kLengths.size() * group * kPitch, 9);
    const std::vector<float> of_suffixes = ref::random_values(kLengths.size() * 3 * group * kPitch, 8);
    const Tensor device_sums = ref::upload_array(*backend, sums), late = ref::upload_array(*backend, of_suffixes);
    Tensor words = ref::upload_segments(*backend, {{2, 0, 2, 10 + 4}, {1, 2, 7, 10 + 8 + 1}, {0, 9, 3, 2}});
    backend->attention_columns_add({.cache = cache.view(),
                                    .segments = ref::segments_of(words),
                                    .segment_count = 3,
                                    .sums = device_sums.slots<float>(kPitch),
                                    .suffix_sums = late.slots<float>(kPitch),
                                    .group = group,
                                    .suffixes = suffixes,
                                    .pool_columns = cache.pool_columns()});
    std::vector<std::vector<float>> want = cache.rows().columns;
    for (size_t row = 0; row < kLengths.size(); ++row) {
      for (int32_t slot = 0; slot < kLengths[row]; ++slot) {
        for (int h = 0; h < group; ++h) {
          const float sum = sums[(row * group + h) * kPitch + slot];
          const auto of_suffix = [&](size_t k) { return of_suffixes[((row * 3 + k) * group + h) * kPitch + slot]; };
          float* columns = &want[row][slot * width + h];
          if (row < 2) {
            columns[0] += sum, columns[group] += sum;
            continue;
          }
          columns[2 * group] += sum;
          for (size_t k = 0; k < 3 && row < 4; ++k) columns[(3 + k) * group] = of_suffix(k);
          if (row >= 4) columns[5 * group] += of_suffix(2);
        }
      }
    }
    EXPECT_EQ(cache.download().columns, want);
  }
}

// Groups, and columns further on, that leave four, two or one to be read at a time.
TEST_P(AttentionColumns, FoldAtAnEventAndBecomeFeatures) {
  KV_BACKEND_OR_SKIP(backend);
  struct Shape {
    int group, suffixes, further;  // columns that nobody may touch
  };
  for (const Shape& shape : std::vector<Shape>{
           {2, 0, 1}, {2, 2, 1}, {2, 3, 0}, {4, 3, 0}, {4, 2, 4}, {4, 1, 2}, {3, 3, 0}, {1, 3, 2}, {8, 3, 0}}) {
    const int group = shape.group, suffixes = shape.suffixes, further = shape.further;
    constexpr int kFirst = 1;
    const int width = (3 + suffixes) * group + further, planes = (3 + suffixes) * group + 2;
    ref::PagedCache cache(*backend, ref::random_rows(kLengths, 2, 16, 5, width));
    const std::vector<uint8_t> due = {1, 1, 0, 1, 1, 1};
    Tensor device_due = ref::upload_array(*backend, due);
    Tensor features(*backend, DType::kF32, std::ssize(kLengths) * planes * kPitch);
    backend->attention_columns_fold({.cache = cache.view(),
                                     .rows_due = ref::data_of<uint8_t>(device_due),
                                     .group = group,
                                     .decay = 0.75F,
                                     .suffix_count = suffixes,
                                     .pool_columns = cache.pool_columns(),
                                     .features = features.slots<float>(kPitch),
                                     .planes = planes,
                                     .first_plane = kFirst});
    const std::vector<float> got = ref::download_array<float>(features);
    const std::vector<std::vector<float>> before = cache.rows().columns, after = cache.download().columns;
    for (int64_t row = 0; row < std::ssize(kLengths); ++row) {
      if (!due[row]) {
        EXPECT_EQ(after[row], before[row]);
      }
      const int64_t count = due[row] ? kLengths[row] : 0;
      for (int plane = 0; plane < planes; ++plane) {
        const bool is_feature = plane >= kFirst && plane < kFirst + (3 + suffixes) * group;
        const int64_t at = (row * planes + plane) * kPitch;
        ref::expect_untouched(got, at + (is_feature ? count : 0), at + kPitch);
      }
      for (int64_t slot = 0; slot < count; ++slot) {
        const float *was = &before[row][slot * width], *is = &after[row][slot * width];
        for (int column = width - further; column < width; ++column) EXPECT_EQ(is[column], was[column]);
        for (int h = 0; h < group; ++h) {
          const double recent = was[2 * group + h];
          const auto feature = [&](int index) {
            return got[(row * planes + kFirst + index * group + h) * kPitch + slot];
          };
          for (int k = 0; k < suffixes; ++k) {
            EXPECT_EQ(feature(k), was[(3 + k) * group + h]);
            EXPECT_EQ(is[(3 + k) * group + h], was[(3 + k) * group + h]);
          }
          EXPECT_EQ(feature(suffixes), recent);
          // A product and a sum of numbers below 1.
          ref::expect_close(feature(suffixes + 1), was[h] + recent, {.roundings = 2});
          ref::expect_close(feature(suffixes + 2), 0.75 * was[group + h] + recent, {.roundings = 2});
          EXPECT_EQ(is[h], feature(suffixes + 1));
          EXPECT_EQ(is[group + h], feature(suffixes + 2));
          EXPECT_EQ(is[2 * group + h], 0);
        }
      }
    }
  }
}

// The interval's sums come from elsewhere, in the first feature; of row 1 they are in both columns already.
TEST_P(AttentionColumns, FoldSumsThatAreGiven) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kTwoColumns = 2 * kGroup, kCopies = 4, kPlanes = (kCopies + 2) * kGroup;
  const std::vector<int32_t> lengths = {140, 17};
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
