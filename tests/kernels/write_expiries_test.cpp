#include "kernels/write_expiries.h"

#include "kernels/append.h"
#include "kernels/expiry.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, WriteExpiries);

constexpr int kLayers = 2, kHeads = 2, kDim = 4;
constexpr int64_t kTokens = 4;
using Ids = std::vector<int32_t>;

// Two layers of three sequences, rows of all lengths; blocks of 3, 0 and 1 tokens, packed the other way round, which
// the lengths count.
struct Case {
  explicit Case(Backend& backend)
      : cache(backend, rows()),
        segments{{2, 0, 1, 90}, {1, 1, 0, 70}, {0, 1, 3, 50}},
        words(ref::upload_segments(backend, segments)) {
    for (int32_t i = 0; i < std::ssize(values); ++i) values[static_cast<size_t>(i)] = 1000 + i;
    expires = ref::upload_array(backend, values);
  }
  static ref::CacheRows rows() {
    ref::CacheRows rows = ref::random_rows({20, 17, 5, 0, 1, 33, 3, 16, 4, 9, 48, 2}, kHeads, kDim, 1);
    for (const std::vector<int32_t>& row : rows.positions) rows.expires.emplace_back(row.size(), 7);
    return rows;
  }
  WriteExpiriesArgs args() {
    return {.expires = ref::data_of<int32_t>(expires),
            .layers = kLayers,
            .tokens = kTokens,
            .segments = ref::segments_of(words),
            .segment_count = std::ssize(segments),
            .max_count = 3,
            .cache = cache.view(),
            .pool_expires = cache.pool_expires()};
  }

  ref::PagedCache cache;
  std::vector<Segment> segments;
  Tensor words, expires;
  std::vector<int32_t> values = std::vector<int32_t>(kLayers * kTokens * kHeads);
};

TEST_P(WriteExpiries, GoesToTheNewestSlotsOfEveryLayersRows) {
  KV_BACKEND_OR_SKIP(backend);
  Case c(*backend);
  backend->write_expiries(c.args());
  std::vector<std::vector<int32_t>> want = c.cache.rows().expires;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Segment& segment : c.segments) {
      for (int head = 0; head < kHeads; ++head) {
        std::vector<int32_t>& row = want[static_cast<size_t>((layer * 3 + segment.sequence) * kHeads + head)];
        for (int32_t i = 0; i < segment.count; ++i) {
          const int64_t from = (layer * kTokens + segment.first_token + i) * kHeads + head;
          row[row.size() - static_cast<size_t>(segment.count - i)] = c.values[static_cast<size_t>(from)];
        }
      }
    }
  }
  EXPECT_EQ(c.cache.download().expires, want);
}

// An entry that nobody has judged yet is seen.
TEST_P(WriteExpiries, ComesAfterAnAppendThatLetsEntriesStay) {
  KV_BACKEND_OR_SKIP(backend);
  ref::CacheRows rows = ref::random_rows({5, 5}, kHeads, kDim, 1);
  rows.expires = {{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}};
  ref::PagedCache cache(*backend, std::move(rows), 1);
  cache.set_lengths({6, 6});
  const Tensor vectors = ref::upload_activations(*backend, ref::random_values(kHeads * kDim, 2));
  Tensor words = ref::upload_segments(*backend, {{0, 0, 1, 9}}), expires = ref::upload_array(*backend, Ids{19, 29});
  backend->append({.keys = vectors.ref(),
                   .values = vectors.ref(),
                   .segments = ref::segments_of(words),
                   .segment_count = 1,
                   .max_count = 1,
                   .cache = cache.view(),
                   .pool_keys = cache.pool_keys(),
                   .pool_values = cache.pool_values(),
                   .pool_positions = cache.pool_positions(),
                   .pool_expires = cache.pool_expires()});
  EXPECT_EQ(cache.download().expires[1], (Ids{1, 2, 3, 4, 5, kNeverExpires}));
  backend->write_expiries({.expires = ref::data_of<int32_t>(expires),
                           .layers = 1,
                           .tokens = 1,
                           .segments = ref::segments_of(words),
                           .segment_count = 1,
                           .max_count = 1,
                           .cache = cache.view(),
                           .pool_expires = cache.pool_expires()});
  EXPECT_EQ(cache.download().expires, (std::vector<Ids>{{1, 2, 3, 4, 5, 19}, {1, 2, 3, 4, 5, 29}}));
}

}  // namespace
}  // namespace kv
