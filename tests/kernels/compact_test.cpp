#include "kernels/compact.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Compact);

using Stays = std::function<bool(int64_t row, int64_t slot)>;

struct Entries {
  int dim = 16;
  int columns = 2;
  bool expire = true;
};

// Rows around a page, and one of several blocks of a GPU.
const std::vector<int32_t> kLengths = {0, 1, 15, 16, 17, 100, 700, 64};

// Which slots stay, in rows of these lengths, some of them not due (due: empty, all are). Of slots that are not among
// the newest the mask says that they leave, and they stay.
void check(Backend& backend, const std::vector<int32_t>& lengths, const std::vector<uint8_t>& due, const Stays& stays,
           int64_t newest = INT64_MAX, const Entries& entries = {}) {
  const auto& [dim, column_count, expire] = entries;
  const int64_t pitch = *std::max_element(lengths.begin(), lengths.end()) + 3;
  ref::CacheRows rows = ref::random_rows(lengths, 2, dim, 5, column_count, 3);
  if (expire) rows.expires = rows.positions;
  for (std::vector<int32_t>& expires : rows.expires) {
    for (int32_t& expiry : expires) expiry = 5 * expiry + 1;
  }
  ref::PagedCache cache(backend, std::move(rows));
  ref::CacheRows want{.kv_heads = 2, .head_dim = dim, .column_width = column_count};
  std::vector<uint8_t> keep(lengths.size() * pitch, 1);
  std::vector<int32_t> kept;
  for (size_t row = 0; row < lengths.size(); ++row) {
    std::vector<float> keys, values, columns;
    std::vector<int32_t> positions, expires;
    const ref::CacheRows& all = cache.rows();
    for (int64_t slot = 0; slot < lengths[row]; ++slot) {
      const bool may_leave = slot >= lengths[row] - newest;
      keep[row * pitch + slot] = may_leave && stays(static_cast<int64_t>(row), slot);
      if ((due.empty() || due[row]) && may_leave && !keep[row * pitch + slot]) continue;
      for (int d = 0; d < dim; ++d) keys.push_back(all.keys[row][slot * dim + d]);
      for (int d = 0; d < dim; ++d) values.push_back(all.values[row][slot * dim + d]);
      for (int c = 0; c < column_count; ++c) columns.push_back(all.columns[row][slot * column_count + c]);
      positions.push_back(all.positions[row][slot]);
      if (expire) expires.push_back(all.expires[row][slot]);
    }
    kept.push_back(static_cast<int32_t>(positions.size()));
    want.keys.push_back(keys);
    want.values.push_back(values);
    want.columns.push_back(columns);
    want.positions.push_back(positions);
    if (expire) want.expires.push_back(expires);
  }
  const Tensor mask = ref::upload_array(backend, keep), rows_due = ref::upload_array(backend, due);
  Tensor counted = ref::upload_array(backend, lengths);
  PagedView view = cache.view();
  view.lengths = ref::data_of<int32_t>(counted);  // read, and written in place
  backend.compact({.cache = view,
                   .keep = mask.slots<uint8_t>(pitch),
                   .rows_due = due.empty() ? nullptr : rows_due.ref().as<uint8_t>(),
                   .newest = newest,
                   .pool_keys = cache.pool_keys(),
                   .pool_values = cache.pool_values(),
                   .pool_positions = cache.pool_positions(),
                   .pool_expires = expire ? cache.pool_expires() : nullptr,
                   .pool_columns = column_count > 0 ? cache.pool_columns() : nullptr,
                   .lengths = ref::data_of<int32_t>(counted)});
  EXPECT_EQ(ref::download_array<int32_t>(counted), kept);
  cache.set_lengths(kept);
  const ref::CacheRows got = cache.download();
  EXPECT_EQ(got.keys, want.keys);
  EXPECT_EQ(got.values, want.values);
  EXPECT_EQ(got.positions, want.positions);
  EXPECT_EQ(got.expires, want.expires);
  EXPECT_EQ(got.columns, want.columns);
}

bool most(int64_t row, int64_t slot) { return (slot * 7 + row) % 3 != 0; }

TEST_P(Compact, KeptEntriesMoveToTheFrontInOrder) {
  KV_BACKEND_OR_SKIP(backend);
  check(*backend, kLengths, {}, most);
}

TEST_P(Compact, OfManyRowsToo) {
  KV_BACKEND_OR_SKIP(backend);
  std::vector<int32_t> lengths(300);
  for (size_t row = 0; row < lengths.size(); ++row) lengths[row] = static_cast<int32_t>(row * 7 % 200);
  check(*backend, lengths, {}, most);
}

// More than a GPU takes at once of so few rows, which move from one piece to another; all, or the newest.
TEST_P(Compact, OfLongRowsToo) {
  KV_BACKEND_OR_SKIP(backend);
  std::vector<int32_t> lengths(100, 40);
  for (size_t row = 0; row < 12; ++row) lengths[row] = static_cast<int32_t>(1500 - 131 * row);
  check(*backend, lengths, {}, most);
  check(*backend, lengths, {}, most, 1100);
  std::vector<uint8_t> every_third(lengths.size());
  for (size_t row = 0; row < every_third.size(); ++row) every_third[row] = row % 3 == 0;
  check(*backend, lengths, every_third, most);
  check(*backend, lengths, {}, [](int64_t, int64_t slot) { return slot < 650 || slot % 5 == 0; });
}

// More columns of a chunk's entries than a block of a GPU moves at once, of which one entry's fall into two rounds.
TEST_P(Compact, OfManyColumnsToo) {
  KV_BACKEND_OR_SKIP(backend);
  std::vector<int32_t> lengths(300);
  for (size_t row = 0; row < lengths.size(); ++row) lengths[row] = static_cast<int32_t>(row * 7 % 400);
  for (const int columns : {13, 24, 1}) check(*backend, lengths, {}, most, INT64_MAX, {.dim = 64, .columns = columns});
}

// Heads that are no whole words of 16 bytes, of few rows and of many; entries with keys and values alone.
TEST_P(Compact, OfOtherEntriesToo) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Entries& entries : {Entries{20, 3}, Entries{16, 0, false}, Entries{128, 0}}) {
    SCOPED_TRACE(entries.dim);
    check(*backend, kLengths, {}, most, INT64_MAX, entries);
    check(*backend, std::vector<int32_t>(300, 33), {}, most, 20, entries);
  }
}

TEST_P(Compact, NoneButTheNewestLeave) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t newest : {0, 1, 16, 90, 650}) {
    SCOPED_TRACE(newest);
    check(*backend, kLengths, {}, most, newest);
    check(
        *backend, kLengths, {}, [](int64_t, int64_t) { return false; }, newest);
  }
}

TEST_P(Compact, KeepsAllOrNone) {
  KV_BACKEND_OR_SKIP(backend);
  check(*backend, kLengths, {}, [](int64_t, int64_t) { return true; });
  check(*backend, kLengths, {}, [](int64_t, int64_t) { return false; });
}

TEST_P(Compact, OnlyTheLastEntryMayStay) {
  KV_BACKEND_OR_SKIP(backend);
  check(*backend, kLengths, {},
        [](int64_t row, int64_t slot) { return slot == kLengths[static_cast<size_t>(row)] - 1; });
}

TEST_P(Compact, RowsNotDueStayAsTheyAre) {
  KV_BACKEND_OR_SKIP(backend);
  check(*backend, kLengths, {1, 0, 1, 0, 0, 1, 1, 0}, [](int64_t, int64_t slot) { return slot % 2 == 1; });
}

}  // namespace
}  // namespace kv
