#include "kernels/write_column.h"

#include <algorithm>

#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, WriteColumn);

constexpr int kHeads = 2, kColumns = 3;

// What is there of the tokens before and of the block itself is drawn by head: entries that were let go leave gaps.
ref::CacheRows rows_with_gaps(const std::vector<int32_t>& seen) {
  std::vector<std::vector<int32_t>> positions;
  std::vector<int32_t> lengths;
  for (size_t row = 0; row < seen.size() * kHeads; ++row) {
    std::vector<int32_t>& of_row = positions.emplace_back();
    for (int32_t p = 0; p < seen[row / kHeads]; ++p) {
      if (row % 3 == 0 || (p * 7 + static_cast<int32_t>(row) * 5) % 11 < 8) of_row.push_back(p);
    }
    lengths.push_back(static_cast<int32_t>(of_row.size()));
  }
  ref::CacheRows rows = ref::random_rows(lengths, kHeads, 16, 5, kColumns);
  rows.positions = positions;
  return rows;
}

TEST_P(WriteColumn, WritesOneColumnOfTheBlocksEntriesThatAreThere) {
  KV_BACKEND_OR_SKIP(backend);
  struct Case {
    std::vector<int32_t> seen;  // by sequence, after the block
    std::vector<Segment> segments;
  };
  const std::vector<Case> cases = {
      {{20, 5}, {}},
      {{1}, {{0, 0, 1, 0}}},
      {{20, 35, 60}, {{2, 0, 1, 59}, {1, 1, 0, 35}, {0, 1, 1, 19}}},  // one each, one has ended
      {{20, 35, 600}, {{1, 0, 17, 18}, {0, 17, 20, 0}, {2, 37, 530, 70}}},
      {{300}, {{0, 3, 40, 200}}}};  // tokens that came since are there, too
  for (const Case& c : cases) {
    for (int column = 0; column < kColumns; ++column) {
      ref::PagedCache cache(*backend, rows_with_gaps(c.seen), 1);
      const std::vector<float> values = ref::random_values(600 * kHeads, 9);
      Tensor words = ref::upload_segments(*backend, c.segments), device_values = ref::upload_array(*backend, values);
      backend->write_column({.cache = cache.view(),
                             .segments = ref::segments_of(words),
                             .segment_count = std::ssize(c.segments),
                             .values = ref::data_of<float>(device_values),
                             .column = column,
                             .pool_columns = cache.pool_columns()});
      backend->synchronize();
      std::vector<std::vector<float>> want = cache.rows().columns;
      int64_t written = 0;
      for (const Segment& segment : c.segments) {
        for (int64_t i = 0; i < segment.count; ++i) {
          for (int head = 0; head < kHeads; ++head) {
            const auto row = static_cast<size_t>(segment.sequence * kHeads + head);
            const std::vector<int32_t>& positions = cache.rows().positions[row];
            const auto found = std::find(positions.begin(), positions.end(), segment.first_position + i);
            if (found == positions.end()) continue;
            want[row][static_cast<size_t>(found - positions.begin()) * kColumns + static_cast<size_t>(column)] =
                values[static_cast<size_t>((segment.first_token + i) * kHeads + head)];
            ++written;
          }
        }
      }
      EXPECT_EQ(cache.download().columns, want);
      EXPECT_EQ(written > 0, !c.segments.empty());
    }
  }
}

// A row whose sequence has tokens may have let all its entries go.
TEST_P(WriteColumn, LeavesEmptyRowsAlone) {
  KV_BACKEND_OR_SKIP(backend);
  ref::PagedCache cache(*backend, ref::random_rows({0, 3}, kHeads, 16, 5, kColumns));
  Tensor words = ref::upload_segments(*backend, {{0, 0, 2, 1}});
  Tensor values = ref::upload_array(*backend, std::vector<float>{1, 2, 3, 4});
  backend->write_column({.cache = cache.view(),
                         .segments = ref::segments_of(words),
                         .segment_count = 1,
                         .values = ref::data_of<float>(values),
                         .pool_columns = cache.pool_columns()});
  backend->synchronize();
  std::vector<std::vector<float>> want = cache.rows().columns;
  want[1][1 * kColumns] = 2;
  want[1][2 * kColumns] = 4;
  EXPECT_EQ(cache.download().columns, want);
}

}  // namespace
}  // namespace kv
