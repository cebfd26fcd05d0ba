#include "kernels/append.h"

#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Append);

struct Growth {
  int32_t length;  // before, of KV head 0; head 1 holds one entry more
  int32_t count;
};

TEST_P(Append, PutsNewEntriesAfterTheOldOnesOfEveryRow) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<Growth> growths = {{0, 1}, {0, 40}, {15, 1}, {14, 2}, {16, 16}, {17, 33}, {20, 0}};
  constexpr int kHeads = 2;
  for (const int dim : {16, 64}) {
    for (const int column_width : {0, 3}) {
      std::vector<int32_t> before, after;
      std::vector<Segment> segments;
      int32_t tokens = 0;
      for (const Growth& growth : growths) {
        for (int head = 0; head < kHeads; ++head) {
          before.push_back(growth.length + head);
          after.push_back(growth.length + head + growth.count);
        }
        segments.push_back({static_cast<int32_t>(segments.size()), tokens, growth.count, 1000 + growth.length});
        tokens += growth.count;
      }
      ref::CacheRows rows = ref::random_rows(before, kHeads, dim, 5, column_width);
      const bool expire = column_width > 0;
      if (expire) rows.expires = rows.positions;
      ref::PagedCache cache(*backend, std::move(rows), 4);
      cache.set_lengths(after);
      const auto size = static_cast<size_t>(tokens) * kHeads * dim;
      const std::vector<float> keys = ref::rounded(*backend, ref::random_values(size, 1));
      const std::vector<float> values = ref::rounded(*backend, ref::random_values(size, 2));
      const Tensor k = ref::upload_activations(*backend, keys), v = ref::upload_activations(*backend, values);
      Tensor words = ref::upload_segments(*backend, segments);
      std::vector<int32_t> expires(static_cast<size_t>(tokens) * kHeads);
      for (size_t i = 0; i < expires.size(); ++i) expires[i] = static_cast<int32_t>(7 * i);
      Tensor device_expires = ref::upload_array(*backend, expires);
      backend->append({.keys = k.ref(),
                       .values = v.ref(),
                       .expires = expire ? ref::data_of<int32_t>(device_expires) : nullptr,
                       .segments = ref::segments_of(words),
                       .segment_count = static_cast<int64_t>(segments.size()),
                       .max_count = 40,
                       .cache = cache.view(),
                       .pool_keys = cache.pool_keys(),
                       .pool_values = cache.pool_values(),
                       .pool_positions = cache.pool_positions(),
                       .pool_expires = cache.pool_expires(),
                       .pool_columns = cache.pool_columns()});
      backend->synchronize();

      ref::CacheRows want = cache.rows();
      for (const Segment& segment : segments) {
        for (int head = 0; head < kHeads; ++head) {
          const auto row = static_cast<size_t>(segment.sequence * kHeads + head);
          for (int32_t i = 0; i < segment.count; ++i) {
            const int64_t from = (int64_t{segment.first_token + i} * kHeads + head) * dim;
            const std::vector<float> key = ref::slice(keys, from, dim), value = ref::slice(values, from, dim);
            want.keys[row].insert(want.keys[row].end(), key.begin(), key.end());
            want.values[row].insert(want.values[row].end(), value.begin(), value.end());
            want.positions[row].push_back(segment.first_position + i);
            if (expire) want.expires[row].push_back(expires[(segment.first_token + i) * kHeads + head]);
            want.columns[row].insert(want.columns[row].end(), static_cast<size_t>(column_width), 0.0f);
          }
        }
      }
      const ref::CacheRows got = cache.download();
      EXPECT_EQ(got.keys, want.keys);
      EXPECT_EQ(got.values, want.values);
      EXPECT_EQ(got.positions, want.positions);
      EXPECT_EQ(got.expires, want.expires);
      EXPECT_EQ(got.columns, want.columns);
    }
  }
}

}  // namespace
}  // namespace kv
