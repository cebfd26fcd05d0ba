#include "kernels/unexpired.h"

#include <utility>
#include <vector>

#include "kernels/expiry.h"
#include "kernels/seen_pairs.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Unexpired);
KV_OVER_BACKENDS(Ops, SeenPairs);

// Two sequences of two heads, of which the second has ended; a block of three tokens, positions 37 to 39, and of none,
// at 21. Entries expire at 30 + slot, or never where the slot is a multiple of 3.
struct Case {
  explicit Case(Backend& backend)
      : cache(backend, rows()), words(ref::upload_segments(backend, {{1, 3, 0, 21}, {0, 0, 3, 37}})) {}
  static ref::CacheRows rows() {
    ref::CacheRows rows = ref::random_rows({20, 17, 3, 0}, 2, 4, 1);
    for (const std::vector<int32_t>& row : rows.positions) {
      std::vector<int32_t> expires;
      for (int32_t slot = 0; slot < std::ssize(row); ++slot) {
        expires.push_back(slot % 3 == 0 ? kNeverExpires : 30 + slot);
      }
      rows.expires.push_back(expires);
    }
    rows.expiring = 20;
    return rows;
  }
  ref::PagedCache cache;
  Tensor words;
};

// The newest token is at 39: slots 1 to 9 but for 3, 6, 9 have expired. Of the sequence that has ended it is at 20.
TEST_P(Unexpired, StayWhatTheNewestTokenSaw) {
  KV_BACKEND_OR_SKIP(backend);
  Case c(*backend);
  constexpr int64_t kPitch = 23;
  Tensor keep = ref::upload_array(*backend, std::vector<uint8_t>(4 * kPitch, 7));
  backend->unexpired({.cache = c.cache.view(),
                      .segments = ref::segments_of(c.words),
                      .segment_count = 2,
                      .keep = keep.slots<uint8_t>(kPitch)});
  const std::vector<uint8_t> got = ref::download_array<uint8_t>(keep);
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t slot = 0; slot < kPitch; ++slot) {
      const bool there = slot < std::vector{20, 17, 3, 0}[row];
      const int want = !there ? 7 : row >= 2 || slot % 3 == 0 || slot > 9 ? 1 : 0;
      EXPECT_EQ(int{got[row * kPitch + slot]}, want) << "row " << row << ", slot " << slot;
    }
  }
}

// Two layers of one sequence of two heads, whose rows are as in Case: one token decides for all of them.
TEST_P(Unexpired, OfSomeLayersAtOnceStayAsOfEach) {
  KV_BACKEND_OR_SKIP(backend);
  Case c(*backend);
  constexpr int64_t kPitch = 20;
  Tensor keep = ref::upload_array(*backend, std::vector<uint8_t>(4 * kPitch, 7));
  Tensor words = ref::upload_segments(*backend, {{0, 0, 3, 37}});
  backend->unexpired({.cache = c.cache.view(),
                      .layers = 2,
                      .segments = ref::segments_of(words),
                      .segment_count = 1,
                      .keep = keep.slots<uint8_t>(kPitch)});
  const std::vector<uint8_t> got = ref::download_array<uint8_t>(keep);
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t slot = 0; slot < kPitch; ++slot) {
      const bool there = slot < std::vector{20, 17, 3, 0}[row];
      const int want = !there ? 7 : slot % 3 == 0 || slot > 9 ? 1 : 0;
      EXPECT_EQ(int{got[row * kPitch + slot]}, want) << "row " << row << ", slot " << slot;
    }
  }
}

// What lies before the newest `expiring` slots is not looked at.
TEST_P(Unexpired, AreAllEntriesThatCannotHaveExpired) {
  KV_BACKEND_OR_SKIP(backend);
  Case c(*backend);
  constexpr int64_t kPitch = 20;
  Tensor keep = ref::upload_array(*backend, std::vector<uint8_t>(4 * kPitch, 7));
  PagedView view = c.cache.view();
  view.expiring = 15;
  backend->unexpired(
      {.cache = view, .segments = ref::segments_of(c.words), .segment_count = 2, .keep = keep.slots<uint8_t>(kPitch)});
  const std::vector<uint8_t> got = ref::download_array<uint8_t>(keep);
  EXPECT_EQ(ref::slice(got, 0, 20), (std::vector<uint8_t>{1, 1, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
}

// Row 1 has expired entries, as its neighbour has, and is not swept.
TEST_P(Unexpired, AreAllEntriesOfARowThatIsNotDue) {
  KV_BACKEND_OR_SKIP(backend);
  Case c(*backend);
  constexpr int64_t kPitch = 20;
  Tensor keep = ref::upload_array(*backend, std::vector<uint8_t>(4 * kPitch, 7));
  Tensor due = ref::upload_array(*backend, std::vector<uint8_t>{1, 0, 1, 1});
  backend->unexpired({.cache = c.cache.view(),
                      .rows_due = ref::data_of<uint8_t>(due),
                      .segments = ref::segments_of(c.words),
                      .segment_count = 2,
                      .keep = keep.slots<uint8_t>(kPitch)});
  const std::vector<uint8_t> got = ref::download_array<uint8_t>(keep);
  EXPECT_EQ(got[1], 0) << "nothing has expired";
  for (int64_t slot = 0; slot < 17; ++slot) EXPECT_EQ(int{got[kPitch + slot]}, 1) << "slot " << slot;
}

// Row by row, query by query, on top of what was counted before.
TEST_P(SeenPairs, CountsWhatEachQuerySees) {
  KV_BACKEND_OR_SKIP(backend);
  Case c(*backend);
  const std::vector<Segment> segments = {{1, 3, 0, 21}, {0, 0, 3, 37}};
  for (const int64_t expiring : {20, 12}) {
    Tensor counts = ref::upload_array(*backend, std::vector<int32_t>{5, 0, 0, 0, 9, 0, 9, 0});  // 5, 0, 9, 9 as i64
    PagedView view = c.cache.view();
    view.expiring = expiring;
    backend->seen_pairs({.cache = view,
                         .segments = ref::segments_of(c.words),
                         .segment_count = 2,
                         .pairs = reinterpret_cast<int64_t*>(ref::data_of<int32_t>(counts))});
    const std::vector<int32_t> words = ref::download_array<int32_t>(counts);
    for (int64_t row = 0; row < 4; ++row) {
      const Segment& segment = segments[row < 2 ? 1 : 0];
      int64_t want = std::vector{5, 0, 9, 9}[row];
      const std::vector<int32_t>& expires = c.cache.rows().expires[row];
      const int64_t length = std::ssize(expires);
      for (int64_t i = 0; i < segment.count; ++i) {
        for (int64_t slot = 0; slot <= length - segment.count + i; ++slot) {
          want += slot < length - expiring || expires[slot] > segment.first_position + i;
        }
      }
      EXPECT_EQ(int64_t{words[2 * row]} + (int64_t{words[2 * row + 1]} << 32), want) << "row " << row;
    }
  }
}

// More slots than a GPU's block has threads, and more tokens.
TEST_P(SeenPairs, OfLongRowsToo) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int32_t kTokens = 300, kFirst = 400;
  ref::CacheRows rows = ref::random_rows({700, 333}, 2, 4, 1);
  for (const std::vector<int32_t>& row : rows.positions) {
    std::vector<int32_t> expires;
    for (int32_t slot = 0; slot < std::ssize(row); ++slot) {
      expires.push_back(slot % 3 == 0 ? kNeverExpires : slot * 7 % 800);
    }
    rows.expires.push_back(expires);
  }
  rows.expiring = 700;
  ref::PagedCache cache(*backend, std::move(rows));
  Tensor words = ref::upload_segments(*backend, {{0, 0, kTokens, kFirst}});
  Tensor counts = ref::upload_array(*backend, std::vector<int32_t>(4, 0));
  backend->seen_pairs({.cache = cache.view(),
                       .segments = ref::segments_of(words),
                       .segment_count = 1,
                       .pairs = reinterpret_cast<int64_t*>(ref::data_of<int32_t>(counts))});
  const std::vector<int32_t> got = ref::download_array<int32_t>(counts);
  for (size_t row = 0; row < 2; ++row) {
    const std::vector<int32_t>& expires = cache.rows().expires[row];
    int64_t want = 0;
    for (int64_t i = 0; i < kTokens; ++i) {
      for (int64_t slot = 0; slot <= std::ssize(expires) - kTokens + i; ++slot) {
        want += expires[static_cast<size_t>(slot)] > kFirst + i;
      }
    }
    EXPECT_EQ(int64_t{got[2 * row]} + (int64_t{got[2 * row + 1]} << 32), want) << "row " << row;
  }
}

}  // namespace
}  // namespace kv
