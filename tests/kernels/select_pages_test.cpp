#include "kernels/select_pages.h"

#include <algorithm>

#include "kernels/page_bounds.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, PageBounds);
KV_OVER_BACKENDS(Ops, SelectPages);

constexpr int kDim = 8;

// A cache with memory for bounds, which begins as NaN.
struct Bounded {
  Bounded(Backend& backend, ref::CacheRows rows)
      : cache(backend, std::move(rows), 1),
        bounds(backend, backend.activation_type(), cache.view().pool_pages * 2 * kDim) {}
  PagedView view() const {
    PagedView view = cache.view();
    view.bounds = bounds.ref();
    return view;
  }
  // Of a page of a row, least then largest, as the host finds them among slots [first, end).
  std::vector<float> expected(int64_t row, int64_t first, int64_t end) const {
    std::vector<float> all(2 * kDim);
    for (int d = 0; d < kDim; ++d) {
      for (int64_t slot = first; slot < end; ++slot) {
        const float key = cache.rows().keys[row][slot * kDim + d];
        all[d] = slot == first ? key : std::min(all[d], key);
        all[kDim + d] = slot == first ? key : std::max(all[kDim + d], key);
      }
    }
    return all;
  }
  ref::PagedCache cache;
  Tensor bounds;
};

// Rows of two heads; after a block whose first sequence brings 20 tokens and whose second, 17 long, none.
TEST_P(PageBounds, AreThoseOfThePagesThatABlockTouched) {
  KV_BACKEND_OR_SKIP(backend);
  Bounded c(*backend, ref::random_rows({60, 37, 17, 16}, 2, kDim, 3));
  Tensor words = ref::upload_segments(*backend, {{1, 20, 0, 17}, {0, 0, 20, 40}});
  backend->page_bounds({.cache = c.view(),
                        .segments = ref::segments_of(words),
                        .segment_count = 2,
                        .max_count = 20,
                        .pool_bounds = c.bounds.ref()});
  const auto pages = [&](int64_t row) {
    std::vector<int32_t> of_row(static_cast<size_t>(c.view().max_pages));
    backend->download(of_row.data(), c.view().page_table + row * c.view().max_pages, of_row.size() * sizeof(int32_t));
    return of_row;
  };
  const auto check = [&](int64_t row, int64_t first_page) {
    const std::vector<float> got = ref::download_activations(c.bounds);
    const int64_t length = c.cache.rows().length(row);
    for (int64_t page = 0; page * kPageTokens < length; ++page) {
      const int64_t at = int64_t{pages(row)[static_cast<size_t>(page)]} * 2 * kDim;
      if (page < first_page) {
        ref::expect_untouched(got, at, at + 2 * kDim);
      } else {
        EXPECT_EQ(ref::slice(got, at, 2 * kDim),
                  c.expected(row, page * kPageTokens, std::min<int64_t>(length, (page + 1) * kPageTokens)));
      }
    }
  };
  check(0, 40 / 16);  // slots 40 to 59
  check(1, 17 / 16);  // slots 17 to 36
  check(2, 2);        // nothing came
  // Compaction may have moved the newest 17 slots of rows that were due.
  Tensor due = ref::upload_array(*backend, std::vector<uint8_t>{1, 0, 1, 0});
  backend->page_bounds(
      {.cache = c.view(), .newest = 17, .rows_due = ref::data_of<uint8_t>(due), .pool_bounds = c.bounds.ref()});
  check(0, 40 / 16);  // slots 43 to 59
  check(1, 17 / 16);
  check(2, 0);
  check(3, 1);
  backend->page_bounds({.cache = c.view(), .newest = 18, .pool_bounds = c.bounds.ref()});
  check(0, 40 / 16);
  check(1, 17 / 16);
  check(3, 0);
}

struct Choice {
  std::vector<int32_t> table, lengths;
};

Choice run(Backend& backend, const Bounded& c, const std::vector<float>& queries, const std::vector<Segment>& segments,
           int q_heads, bool per_query_head, int pages, int newest) {
  const PagedView view = c.view();
  const auto rows = static_cast<int64_t>(segments.size()) * (per_query_head ? q_heads : view.kv_heads);
  const Tensor q = ref::upload_activations(backend, queries);
  Tensor words = ref::upload_segments(backend, segments);
  Tensor table(backend, DType::kI32, rows * view.max_pages), lengths(backend, DType::kI32, rows);
  backend.select_pages({.queries = q.ref(),
                        .cache = view,
                        .segments = ref::segments_of(words),
                        .segment_count = std::ssize(segments),
                        .q_heads = q_heads,
                        .per_query_head = per_query_head,
                        .pages = pages,
                        .newest = newest,
                        .page_table = ref::data_of<int32_t>(table),
                        .lengths = ref::data_of<int32_t>(lengths)});
  return {ref::download_array<int32_t>(table), ref::download_array<int32_t>(lengths)};
}

void bound_all(Backend& backend, Bounded& c) {
  backend.page_bounds({.cache = c.view(), .newest = c.view().max_length, .pool_bounds = c.bounds.ref()});
}

// The fact sheet's vector: q = (1, −2, 0.5), keys (.2, .1, −1), (.5, .3, .4), (−.1, −.2, 0): the bound is 1.1.
// Here it lies in a page between one of bound 1.0 and one of 1.2; the last page, worth −9, is always read.
TEST_P(SelectPages, ReadsTheLastAndThoseOfTheLargestBounds) {
  KV_BACKEND_OR_SKIP(backend);
  ref::CacheRows rows = ref::random_rows({50}, 1, kDim, 1);
  std::fill(rows.keys[0].begin(), rows.keys[0].end(), 0.0F);
  const auto key = [&](int slot, std::vector<float> values) {
    std::copy(values.begin(), values.end(), rows.keys[0].begin() + slot * kDim);
  };
  for (int slot = 16; slot < 32; ++slot) key(slot, {-0.1F, -0.2F, 0});
  key(17, {0.2F, 0.1F, -1});
  key(18, {0.5F, 0.3F, 0.4F});
  for (int slot = 0; slot < 16; ++slot) key(slot, {1, 0, 0});
  for (int slot = 32; slot < 48; ++slot) key(slot, {0, -0.625F, 0});  // 1.25
  for (int slot = 48; slot < 50; ++slot) key(slot, {-9, 0, 0});
  Bounded c(*backend, rows);
  bound_all(*backend, c);
  const std::vector<float> query = {1, -2, 0.5F, 0, 0, 0, 0, 0};
  std::vector<int32_t> pages(static_cast<size_t>(c.view().max_pages));
  backend->download(pages.data(), c.view().page_table, pages.size() * sizeof(int32_t));
  const auto read = [&](int budget, int newest) {
    const Choice choice = run(*backend, c, query, {{0, 0, 1, 49}}, 1, false, budget, newest);
    std::vector<int> which;
    for (size_t i = 0; i < choice.table.size() && choice.table[i] >= 0; ++i) {
      which.push_back(static_cast<int>(std::find(pages.begin(), pages.end(), choice.table[i]) - pages.begin()));
    }
    EXPECT_EQ(choice.lengths[0], std::ssize(which) * 16 - 14);
    for (size_t i = which.size(); i < choice.table.size(); ++i) EXPECT_EQ(choice.table[i], -1);
    return which;
  };
  EXPECT_EQ(read(1, 1), (std::vector<int>{3}));
  EXPECT_EQ(read(2, 1), (std::vector<int>{2, 3}));
  EXPECT_EQ(read(3, 1), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(read(4, 1), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(read(9, 1), (std::vector<int>{0, 1, 2, 3}));
  // The newest 18 slots reach into page 2, the newest 35 into page 0: they are read whatever the budget.
  EXPECT_EQ(read(1, 18), (std::vector<int>{2, 3}));
  EXPECT_EQ(read(1, 35), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(read(3, 18), (std::vector<int>{1, 2, 3}));
}

// Equal bounds: the newer page. Rows of other counts than one are read whole.
TEST_P(SelectPages, PrefersTheNewerAmongEqualsAndLeavesPromptsWhole) {
  KV_BACKEND_OR_SKIP(backend);
  ref::CacheRows rows = ref::random_rows({64, 64, 64}, 1, kDim, 1);
  for (std::vector<float>& keys : rows.keys) std::fill(keys.begin(), keys.end(), 1.0F);
  Bounded c(*backend, rows);
  bound_all(*backend, c);
  const Choice choice = run(*backend, c, std::vector<float>(4 * kDim, 1.0F),
                            {{0, 0, 1, 63}, {1, 1, 3, 61}, {2, 4, 0, 64}}, 1, false, 2, 1);
  std::vector<int32_t> pages(static_cast<size_t>(3 * c.view().max_pages));
  backend->download(pages.data(), c.view().page_table, pages.size() * sizeof(int32_t));
  EXPECT_EQ(choice.lengths, (std::vector<int32_t>{32, 64, 64}));
  EXPECT_EQ(ref::slice(choice.table, 0, 2), ref::slice(pages, 2, 2));
  EXPECT_EQ(ref::slice(choice.table, c.view().max_pages, 4), ref::slice(pages, c.view().max_pages, 4));
}

// Against a plain reading of the contract, over random caches, both kinds of rows.
TEST_P(SelectPages, AgreesWithAPlainReading) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kHeads = 2, kGroup = 3, kQHeads = kHeads * kGroup;
  const std::vector<int32_t> lengths = {300, 299, 33, 32, 16, 1};
  Bounded c(*backend, ref::random_rows(lengths, kHeads, kDim, 9));
  bound_all(*backend, c);
  const std::vector<float> queries = ref::rounded(*backend, ref::random_values(3 * kQHeads * kDim, 4));
  const std::vector<Segment> segments = {{0, 1, 1, 299}, {1, 0, 1, 32}, {2, 2, 1, 15}};
  for (const bool per_query_head : {false, true}) {
    for (const int pages : {1, 2, 5, 18, 40}) {
      const Choice got = run(*backend, c, queries, segments, kQHeads, per_query_head, pages, 20);
      const int rows = per_query_head ? kQHeads : kHeads;
      for (const Segment& segment : segments) {
        for (int head = 0; head < rows; ++head) {
          const int64_t row = int64_t{segment.sequence} * kHeads + (per_query_head ? head / kGroup : head);
          const int64_t length = lengths[row], count = (length + 15) / 16,
                        newest = std::max<int64_t>(0, length - 20) / 16;
          std::vector<std::pair<float, int64_t>> bounds;
          for (int64_t page = 0; page < newest; ++page) {
            const std::vector<float> of_page = c.expected(row, page * 16, page * 16 + 16);
            float largest = -1e30F;
            for (int q = per_query_head ? head : head * kGroup; q < (per_query_head ? head + 1 : (head + 1) * kGroup);
                 ++q) {
              float sum = 0;
              for (int d = 0; d < kDim; ++d) {
                const float value = queries[(segment.first_token * kQHeads + q) * kDim + d];
                sum += std::max(value * of_page[d], value * of_page[kDim + d]);
              }
              largest = std::max(largest, sum);
            }
            bounds.emplace_back(largest, page);
          }
          std::sort(bounds.rbegin(), bounds.rend());
          std::vector<int64_t> want;
          for (int64_t page = newest; page < count; ++page) want.push_back(page);
          for (size_t i = 0; i < bounds.size() && std::ssize(want) < pages; ++i) want.push_back(bounds[i].second);
          std::sort(want.begin(), want.end());
          const int64_t written = int64_t{segment.sequence} * rows + head, width = c.view().max_pages;
          std::vector<int32_t> table(static_cast<size_t>(width));
          backend->download(table.data(), c.view().page_table + row * width, table.size() * sizeof(int32_t));
          EXPECT_EQ(got.lengths[written], std::ssize(want) * 16 - (count * 16 - length)) << "row " << written;
          for (size_t i = 0; i < want.size(); ++i) {
            EXPECT_EQ(got.table[written * width + static_cast<int64_t>(i)], table[want[i]]) << "row " << written;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kv
