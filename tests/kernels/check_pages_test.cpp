#include "kernels/check_pages.h"

#include "kernels/column_add.h"
#include "kernels/error.h"
#include "kernels/select_pooled.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"
#include "tests/support/this_build.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, CheckPages);

// Rows of 3, 0, 1, 2 and 1 pages in tables of 4 entries, a pool of 10 pages; tables and lengths are the test's to
// break.
struct Layer {
  explicit Layer(Backend& on) : backend(on), cache(on, ref::random_rows(lengths, 1, 16, 3, 1)), base(cache.view()) {
    table.resize(static_cast<size_t>(base.rows * base.max_pages));
    backend.download(table.data(), base.page_table, table.size() * sizeof(int32_t));
  }

  int32_t& entry(int64_t row, int64_t index) { return table[static_cast<size_t>(row * base.max_pages + index)]; }

  // Valid until the next call.
  PagedView view() {
    device_table = ref::upload_array(backend, table);
    device_lengths = ref::upload_array(backend, lengths);
    PagedView view = base;
    view.page_table = ref::data_of<int32_t>(device_table);
    view.lengths = ref::data_of<int32_t>(device_lengths);
    return view;
  }

  // What the check says; empty when it finds nothing wrong.
  std::string complaint() {
    try {
      backend.check_pages(view());
    } catch (const PageError& error) {
      return error.what();
    }
    return "";
  }

  Backend& backend;
  std::vector<int32_t> lengths = {40, 0, 16, 17, 1};
  ref::PagedCache cache;
  PagedView base;
  std::vector<int32_t> table;
  Tensor device_table, device_lengths;
};

TEST_P(CheckPages, FindNothingInASoundView) {
  KV_BACKEND_OR_SKIP(backend);
  Layer layer(*backend);
  EXPECT_EQ(layer.base.pool_pages, 10);
  EXPECT_EQ(layer.complaint(), "");
  backend->check_pages({});
}

TEST_P(CheckPages, NameThePageThatThePoolDoesNotHave) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int32_t dead : {-1, 10, -2147483647 - 1, 2147483647}) {
    Layer layer(*backend);
    layer.entry(3, 1) = dead;
    EXPECT_EQ(layer.complaint(),
              "page table: entry 1 of row 3 is " + std::to_string(dead) + " (expected 0 to 9: the pool has 10 pages)");
  }
}

TEST_P(CheckPages, NameTheRowThatIsTooLong) {
  KV_BACKEND_OR_SKIP(backend);
  Layer layer(*backend);
  for (const int32_t length : {-1, 41, 2147483647}) {
    layer.lengths[2] = length;
    EXPECT_EQ(layer.complaint(), "page table: row 2 has a length of " + std::to_string(length) +
                                     " (expected 0 to 40: room for 4 pages of 16 and at most 40)");
  }
  layer.base.max_length = 1000;
  layer.lengths[2] = 65;
  EXPECT_EQ(layer.complaint(),
            "page table: row 2 has a length of 65 (expected 0 to 64: room for 4 pages of 16 and at most 1000)");
}

TEST_P(CheckPages, NameThePageThatTwoEntriesShare) {
  KV_BACKEND_OR_SKIP(backend);
  Layer rows(*backend);
  rows.entry(3, 0) = rows.entry(0, 2);
  const std::string page = std::to_string(rows.entry(0, 2));
  EXPECT_EQ(rows.complaint(),
            "page table: entry 0 of row 3 is " + page +
                ", which is entry 2 of row 0, too (expected a page of its own, of the 10 in the pool)");
  Layer row(*backend);
  row.entry(0, 2) = row.entry(0, 1);
  EXPECT_NE(
      row.complaint().find("entry 2 of row 0 is " + std::to_string(row.entry(0, 1)) + ", which is entry 1 of row 0"),
      std::string::npos)
      << row.complaint();
}

// Rows 0 and 1 read the same entries, as do 2 and 3; row 4 is of the next pair.
TEST_P(CheckPages, LetRowsThatReadTheSameEntriesShareTheirPages) {
  KV_BACKEND_OR_SKIP(backend);
  Layer layer(*backend);
  layer.base.sharing_rows = 2;
  layer.lengths[1] = 20;
  layer.entry(1, 0) = layer.entry(0, 0);
  layer.entry(1, 1) = layer.entry(0, 2);
  EXPECT_EQ(layer.complaint(), "");
  layer.entry(3, 1) = layer.entry(0, 1);
  EXPECT_NE(layer.complaint().find("entry 1 of row 3 is " + std::to_string(layer.entry(0, 1)) +
                                   ", which is entry 1 of row 0"),
            std::string::npos)
      << layer.complaint();
  layer.base.sharing_rows = 1;
  EXPECT_NE(layer.complaint().find("entry 0 of row 1"), std::string::npos) << layer.complaint();
}

TEST_P(CheckPages, NameTheFirstOffenderOfSeveral) {
  KV_BACKEND_OR_SKIP(backend);
  Layer layer(*backend);
  const auto expect_first = [&](const std::string& what) {
    EXPECT_EQ(layer.complaint().substr(0, what.size()), what) << layer.complaint();
  };
  layer.entry(4, 0) = -1;
  expect_first("page table: entry 0 of row 4 is -1");
  layer.lengths[3] = -5;
  expect_first("page table: row 3 has a length of -5");
  layer.entry(2, 0) = layer.entry(0, 0);
  expect_first("page table: entry 0 of row 2 is " + std::to_string(layer.entry(0, 0)) + ", which is entry 0 of row 0");
  layer.entry(0, 2) = 99;
  expect_first("page table: entry 2 of row 0 is 99");
}

TEST_P(CheckPages, ReadNoEntryBeyondTheLength) {
  KV_BACKEND_OR_SKIP(backend);
  Layer layer(*backend);
  layer.entry(0, 3) = 99;
  layer.entry(1, 0) = layer.entry(0, 0);
  layer.entry(2, 1) = -7;
  EXPECT_EQ(layer.complaint(), "");
}

// Longer than one pass of a GPU's block.
TEST_P(CheckPages, ReadEveryEntryOfALongRow) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int32_t kPages = 1000;
  std::vector<int32_t> table(kPages), length = {kPages * kPageTokens - 15};
  for (int32_t page = 0; page < kPages; ++page) table[page] = kPages - 1 - page;
  for (const int32_t broken : {0, 127, 128, kPages - 1}) {
    std::vector<int32_t> dead = table;
    dead[broken] = kPages;
    Tensor device_table = ref::upload_array(*backend, dead), device_length = ref::upload_array(*backend, length);
    const PagedView view{.page_table = ref::data_of<int32_t>(device_table),
                         .lengths = ref::data_of<int32_t>(device_length),
                         .pool_pages = kPages,
                         .rows = 1,
                         .max_pages = kPages,
                         .max_length = length[0]};
    EXPECT_THROW(backend->check_pages(view), PageError) << broken;
    device_table.upload(table.data(), table.size() * sizeof(int32_t));
    EXPECT_NO_THROW(backend->check_pages(view));
  }
}

// An op that reads `view`.
void mean_columns(Backend& backend, const PagedView& view, Tensor& scores) {
  backend.column_mean({.cache = view, .first = 0, .count = 1, .scores = scores.slots<float>(40)});
}

// No op reads the size of the pool, so that all of these views are fine to run on.
TEST_P(CheckPages, ComeBeforeEveryOpWhereThatIsAskedFor) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::PagedCache cache(*backend, ref::random_rows({40, 3}, 1, 16, 3, 1));
  PagedView small = cache.view();
  small.pool_pages = 1;
  Tensor scores(*backend, DType::kF32, 80);
  backend->check_every_op(true);
  EXPECT_THROW(mean_columns(*backend, small, scores), PageError);
  ref::expect_untouched(ref::download_array<float>(scores), 0, 80);
  mean_columns(*backend, cache.view(), scores);
  EXPECT_EQ(ref::download_array<float>(scores)[0], cache.rows().columns[0][0]);

  // An op over several layers checks each one's view.
  Tensor keep(*backend, DType::kU8, 160), kept(*backend, DType::kI32, 4);
  Tensor counts = ref::upload_array<int32_t>(*backend, {10, 2});
  std::vector<SelectPooledArgs::Layer> layers(2);
  for (int64_t layer = 0; layer < 2; ++layer) {
    layers[static_cast<size_t>(layer)] = {.cache = layer == 0 ? cache.view() : small,
                                          .scores = scores.slots<float>(40),
                                          .keep = {keep.at(layer * 80).as<uint8_t>(), 2, 40},
                                          .kept = kept.at(layer * 2).as<int32_t>()};
  }
  const SelectPooledArgs pooled{.layers = layers.data(), .layer_count = 2, .counts = ref::data_of<int32_t>(counts)};
  EXPECT_THROW(backend->select_pooled(pooled), PageError);

  backend->check_every_op(false);
  EXPECT_NO_THROW(mean_columns(*backend, small, scores));
  EXPECT_NO_THROW(backend->select_pooled(pooled));
}

TEST_P(CheckPages, ComeBeforeEveryOpOfADebugBuild) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::PagedCache cache(*backend, ref::random_rows({40, 3}, 1, 16, 3, 1));
  PagedView small = cache.view();
  small.pool_pages = 1;
  Tensor scores(*backend, DType::kF32, 80);
  if (ref::is_debug_build()) {
    EXPECT_THROW(mean_columns(*backend, small, scores), PageError);
  } else {
    EXPECT_NO_THROW(mean_columns(*backend, small, scores));
  }
}

// A GPU's recording has no place for them, and must not fail for it.
TEST_P(CheckPages, LeaveARecordingAsItIs) {
  KV_BACKEND_OR_SKIP(backend);
  backend->check_every_op(true);
  const ref::PagedCache cache(*backend, ref::random_rows({40, 3}, 1, 16, 3, 1));
  Tensor scores(*backend, DType::kF32, 80);
  const auto recording = backend->record([&] { mean_columns(*backend, cache.view(), scores); });
  recording->run();
  backend->synchronize();
  EXPECT_EQ(ref::download_array<float>(scores)[0], cache.rows().columns[0][0]);
}

}  // namespace
}  // namespace kv
