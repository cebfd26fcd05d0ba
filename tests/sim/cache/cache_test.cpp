#include "sim/cache/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "sim/cache/to_host.h"
#include "sim/model/activations.h"
#include "sim/source/source.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Runs, CacheOn);

constexpr int kHeadDim = 2;

// A block of `counts[s]` tokens whose key is (position, head) and value (−position, sequence): exact in 16 bits, too.
struct TinyBlock {
  Block block;
  Tensor keys, values;
};

TinyBlock make_tiny_block(Backend& backend, int kv_heads, std::vector<int32_t> first, std::vector<int32_t> counts) {
  std::vector<float> keys, values;
  for (size_t s = 0; s < counts.size(); ++s) {
    for (int32_t i = 0; i < counts[s]; ++i) {
      for (int head = 0; head < kv_heads; ++head) {
        const auto position = static_cast<float>(first[s] + i);
        keys.insert(keys.end(), {position, static_cast<float>(head)});
        values.insert(values.end(), {-position, static_cast<float>(s)});
      }
    }
  }
  return {make_block(backend, first, counts), ref::upload_activations(backend, keys),
          ref::upload_activations(backend, values)};
}

void append(Cache& cache, int layer, const TinyBlock& tiny) {
  cache.grow(tiny.block.segments);
  cache.append(layer, tiny.block, tiny.keys.ref(), tiny.values.ref());
}

float* column_of(Cache& cache, int32_t page) { return cache.columns() + int64_t{page} * kPageTokens; }

std::vector<int32_t> pages_of(Backend& backend, const PagedView& view, int64_t row) {
  return to_host(backend, view.page_table + row * view.max_pages, view.max_pages);
}

// Positions of a row's slots, read through its pages, where each entry still has its own key and value.
std::vector<int32_t> positions(Backend& backend, const Cache& cache, int layer, int64_t row) {
  const PagedView view = cache.view(layer);
  const int32_t length = cache.lengths(layer)[static_cast<size_t>(row)];
  EXPECT_EQ(to_host(backend, view.lengths + row, 1)[0], length);
  const int64_t sequence = row / view.kv_heads, head = row % view.kv_heads;
  const std::vector<int32_t> pages = pages_of(backend, view, row);
  std::vector<int32_t> result = positions_to_host(backend, view, row, length);
  const auto vectors = [&](ConstRef pool, int32_t page) {
    const size_t bytes = kPageTokens * kHeadDim * bytes_of(pool.dtype);
    const void* from = static_cast<const std::byte*>(pool.data) + static_cast<size_t>(page) * bytes;
    return download_activations(backend, {from, pool.dtype}, kPageTokens * kHeadDim);
  };
  for (int32_t first = 0; first < length; first += kPageTokens) {
    const int32_t page = pages[static_cast<size_t>(first / kPageTokens)];
    const auto keys = vectors(view.keys, page), values = vectors(view.values, page);
    for (int32_t slot = first; slot < std::min(length, first + kPageTokens); ++slot) {
      const auto position = static_cast<float>(result[static_cast<size_t>(slot)]);
      const auto at = static_cast<size_t>((slot - first) * kHeadDim);
      EXPECT_EQ(keys[at], position);
      EXPECT_EQ(keys[at + 1], static_cast<float>(head));
      EXPECT_EQ(values[at], -position);
      EXPECT_EQ(values[at + 1], static_cast<float>(sequence));
    }
  }
  return result;
}

// Evicts from a layer's due rows all slots but kept[row].
void evict(Backend& backend, Cache& cache, int layer, int64_t pitch, const std::vector<std::vector<int>>& kept,
           const std::vector<uint8_t>& due) {
  std::vector<uint8_t> keep(due.size() * static_cast<size_t>(pitch), 0);
  for (size_t row = 0; row < kept.size(); ++row) {
    for (const int slot : kept[row]) keep[row * static_cast<size_t>(pitch) + static_cast<size_t>(slot)] = 1;
  }
  Tensor mask = ref::upload_array(backend, keep), rows_due = ref::upload_array(backend, due);
  cache.evict(layer, mask.slots<uint8_t>(pitch), ref::data_of<uint8_t>(rows_due));
}

std::vector<int> first_slots(int count) {
  std::vector<int> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

TEST_P(CacheOn, AppendsRaggedSequencesInOrderOfPosition) {
  KV_BACKEND_OR_SKIP(backend);
  Cache cache(*backend, {.sequences = 2, .layers = 1, .kv_heads = 2, .head_dim = kHeadDim});
  append(cache, 0, make_tiny_block(*backend, 2, {0, 0}, {3, 17}));
  append(cache, 0, make_tiny_block(*backend, 2, {3, 17}, {2, 0}));
  EXPECT_EQ(positions(*backend, cache, 0, 0), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(positions(*backend, cache, 0, 1), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(positions(*backend, cache, 0, 2).size(), 17u);
  EXPECT_EQ(positions(*backend, cache, 0, 3).back(), 16);
  EXPECT_EQ(cache.entries(), 2 * 5 + 2 * 17);
  EXPECT_EQ(cache.used_pages(), 2 * 1 + 2 * 2);  // 5 entries fit a page, 17 need two
}

TEST_P(CacheOn, EvictionMovesSurvivorsTogetherAndFreesTheirPages) {
  KV_BACKEND_OR_SKIP(backend);
  Cache cache(*backend, {.sequences = 1, .layers = 1, .kv_heads = 2, .head_dim = kHeadDim});
  append(cache, 0, make_tiny_block(*backend, 2, {0}, {20}));
  ASSERT_EQ(cache.used_pages(), 4);
  evict(*backend, cache, 0, 32, {{0, 7, 18}}, {1, 0});
  EXPECT_EQ(cache.lengths(0)[0], 20) << "the backend counts, the host learns of it when the event is over";
  cache.settle();
  EXPECT_EQ(positions(*backend, cache, 0, 0), (std::vector<int32_t>{0, 7, 18}));
  EXPECT_EQ(positions(*backend, cache, 0, 1).size(), 20u) << "a row that is not due stays as it is";
  EXPECT_EQ(cache.used_pages(), 1 + 2);
  EXPECT_EQ(cache.peak_pages(), 4);
  append(cache, 0, make_tiny_block(*backend, 2, {20}, {1}));
  EXPECT_EQ(positions(*backend, cache, 0, 0), (std::vector<int32_t>{0, 7, 18, 20}));
}

// An event cuts one layer after the other, each row to a length of its own, and settles them all at once.
TEST_P(CacheOn, LayersOfOneEventKeepWhatTheirMasksSay) {
  KV_BACKEND_OR_SKIP(backend);
  Cache cache(*backend, {.sequences = 1, .layers = 2, .kv_heads = 2, .head_dim = kHeadDim});
  TinyBlock block = make_tiny_block(*backend, 2, {0}, {40});
  cache.grow(block.block.segments);
  const int lengths[2][2] = {{3, 17}, {40, 0}};
  for (int layer = 0; layer < 2; ++layer) {
    cache.append(layer, block.block, block.keys.ref(), block.values.ref());
    evict(*backend, cache, layer, 48, {first_slots(lengths[layer][0]), first_slots(lengths[layer][1])}, {1, 1});
  }
  cache.settle();
  for (int layer = 0; layer < 2; ++layer) {
    for (size_t row = 0; row < 2; ++row) {
      EXPECT_EQ(cache.lengths(layer)[row], lengths[layer][row]);
      EXPECT_EQ(positions(*backend, cache, layer, static_cast<int64_t>(row)), first_slots(lengths[layer][row]));
    }
  }
  EXPECT_EQ(cache.used_pages(), (1 + 2) + (3 + 0));
  EXPECT_EQ(cache.view(0).max_length, 17);
  EXPECT_EQ(cache.view(1).max_length, 40);
}

TEST_P(CacheOn, EntryColumnsStartAtZeroMoveWithTheirEntryAndAreCounted) {
  KV_BACKEND_OR_SKIP(backend);
  Cache cache(*backend, {.sequences = 1, .layers = 1, .kv_heads = 1, .head_dim = kHeadDim, .column_width = 1});
  append(cache, 0, make_tiny_block(*backend, 1, {0}, {4}));
  const std::vector<int32_t> pages = pages_of(*backend, cache.view(0), 0);
  EXPECT_EQ(to_host(*backend, column_of(cache, pages[0]), 4), std::vector<float>(4, 0));
  const float seven = 7;
  backend->upload(column_of(cache, pages[0]) + 3, &seven, sizeof seven);
  evict(*backend, cache, 0, 16, {{1, 3}}, {1});
  EXPECT_EQ(to_host(*backend, column_of(cache, pages[0]), 2), (std::vector<float>{0, 7}));
  EXPECT_EQ(cache.column_page_bytes(), 16u * 4);
  EXPECT_EQ(cache.page_bytes(), 16u * (2 * kHeadDim * bytes_of(backend->activation_type()) + 4) + 16u * 4);
}

TEST_P(CacheOn, ResetGivesBackEveryPage) {
  KV_BACKEND_OR_SKIP(backend);
  Cache cache(*backend, {.sequences = 1, .layers = 3, .kv_heads = 1, .head_dim = kHeadDim});
  cache.grow(make_tiny_block(*backend, 1, {0}, {33}).block.segments);
  EXPECT_EQ(cache.used_pages(), 9);
  cache.reset();
  EXPECT_EQ(cache.used_pages(), 0);
  EXPECT_EQ(cache.entries(), 0);
  append(cache, 1, make_tiny_block(*backend, 1, {0}, {2}));
  EXPECT_EQ(positions(*backend, cache, 1, 0), (std::vector<int32_t>{0, 1}));
}

// 3 of 40 entries stay, in one page of three: the pool keeps the other two, a copy has no use for them.
TEST_P(CacheOn, ACopyTakesOnlyWhatIsHeldAndTheRoomThatIsAskedFor) {
  KV_BACKEND_OR_SKIP(backend);
  Cache cache(*backend, {.sequences = 2, .layers = 1, .kv_heads = 1, .head_dim = kHeadDim, .column_width = 1});
  append(cache, 0, make_tiny_block(*backend, 1, {0, 0}, {40, 20}));
  std::vector<float> marks(kPageTokens);
  std::iota(marks.begin(), marks.end(), 100.0F);
  const int32_t third = pages_of(*backend, cache.view(0), 0)[2];
  backend->upload(column_of(cache, third), marks.data(), marks.size() * sizeof(float));
  evict(*backend, cache, 0, 48, {{0, 35, 39}}, {1, 0});
  cache.settle();
  ASSERT_EQ(cache.bytes(), 5 * cache.page_bytes());

  const size_t before = backend->bytes_in_use();
  Cache copy = cache.clone();
  EXPECT_GE(backend->bytes_in_use(), before + copy.bytes());
  EXPECT_EQ(copy.bytes(), 3 * cache.page_bytes());
  EXPECT_EQ(copy.bytes(), cache.clone_bytes());
  EXPECT_EQ(copy.used_pages(), 3);
  EXPECT_EQ(copy.used_pages(0), 1);
  EXPECT_EQ(copy.used_pages(1), 2);
  EXPECT_EQ(positions(*backend, copy, 0, 0), (std::vector<int32_t>{0, 35, 39}));
  EXPECT_EQ(positions(*backend, copy, 0, 1), positions(*backend, cache, 0, 1));
  const int32_t page = pages_of(*backend, copy.view(0), 0)[0];
  EXPECT_EQ(to_host(*backend, column_of(copy, page), 3), (std::vector<float>{0, 103, 107}));

  // 3 + 14 entries take a page more, 20 + 12 do not.
  const std::vector<int32_t> room = {14, 12};
  Cache roomy = cache.clone(cache.pages_with(room));
  EXPECT_EQ(roomy.bytes(), 4 * cache.page_bytes());
  EXPECT_EQ(roomy.bytes(), cache.clone_bytes(cache.pages_with(room)));
  EXPECT_EQ(roomy.growth_bytes(room), 0U);
  append(roomy, 0, make_tiny_block(*backend, 1, {40, 20}, {14, 12}));
  EXPECT_EQ(roomy.bytes(), 4 * cache.page_bytes()) << "what was foreseen needs no larger pool";
  EXPECT_EQ(positions(*backend, roomy, 0, 0).back(), 53);
  EXPECT_EQ(positions(*backend, cache, 0, 0), (std::vector<int32_t>{0, 35, 39})) << "the original is another's";
  EXPECT_EQ(copy.growth_bytes(room), cache.page_bytes());
}

TEST_P(CacheOn, RoomForSeveralStepsIsTakenAtOnceAndFilledOneByOne) {
  KV_BACKEND_OR_SKIP(backend);
  Cache cache(*backend, {.sequences = 2, .layers = 2, .kv_heads = 1, .head_dim = kHeadDim});
  append(cache, 1, make_tiny_block(*backend, 1, {0, 0}, {15, 3}));
  TinyBlock step = make_tiny_block(*backend, 1, {15, 3}, {1, 0});
  cache.grow(step.block.segments, 3);
  EXPECT_EQ(cache.used_pages(), 2 * (2 + 1)) << "15 + 3 entries need two pages";
  EXPECT_EQ(cache.view(0).max_length, 18);
  EXPECT_EQ(to_host(*backend, cache.view(1).lengths, 1)[0], 16) << "only the first step is counted";
  cache.append(1, step.block, step.keys.ref(), step.values.ref());
  cache.advance(step.block.segments);
  EXPECT_EQ(cache.lengths(1)[0], 17);
  EXPECT_EQ(cache.lengths(1)[1], 3);
  EXPECT_EQ(to_host(*backend, cache.view(1).lengths, 1)[0], 16) << "the op `advance` counts on the backend";
}

// Every page's bounds are those of the entries that it holds now: of key (position, head), where positions ascend.
void expect_bounds(Backend& backend, const Cache& cache) {
  const size_t bytes = 2 * kHeadDim * bytes_of(backend.activation_type());
  for (int layer = 0; layer < cache.shape().layers; ++layer) {
    const PagedView view = cache.view(layer);
    for (int64_t row = 0; row < view.rows; ++row) {
      const std::vector<int32_t> pages = pages_of(backend, view, row), of_row = positions(backend, cache, layer, row);
      const auto head = static_cast<float>(row % view.kv_heads);
      for (size_t first = 0; first < of_row.size(); first += kPageTokens) {
        const size_t page = first / kPageTokens, last = std::min(of_row.size(), first + kPageTokens) - 1;
        const void* from = static_cast<const std::byte*>(view.bounds.data) + static_cast<size_t>(pages[page]) * bytes;
        EXPECT_EQ(download_activations(backend, {from, view.bounds.dtype}, 2 * kHeadDim),
                  (std::vector<float>{static_cast<float>(of_row[first]), head, static_cast<float>(of_row[last]), head}))
            << "layer " << layer << ", row " << row << ", page " << page;
      }
    }
  }
}

// Appended to a page that is not full, compacted in some rows, appended to what is left, copied, moved by a larger
// pool.
TEST_P(CacheOn, BoundsOfPagesFollowWhatTheyHold) {
  KV_BACKEND_OR_SKIP(backend);
  Cache cache(*backend, {.sequences = 2, .layers = 2, .kv_heads = 2, .head_dim = kHeadDim, .page_bounds = true});
  const auto append_to_all = [&](Cache& to, std::vector<int32_t> first, std::vector<int32_t> counts) {
    const TinyBlock block = make_tiny_block(*backend, 2, std::move(first), std::move(counts));
    to.grow(block.block.segments);
    for (int layer = 0; layer < 2; ++layer) to.append(layer, block.block, block.keys.ref(), block.values.ref());
    expect_bounds(*backend, to);
  };
  append_to_all(cache, {0, 0}, {40, 21});
  append_to_all(cache, {40, 21}, {3, 0});
  evict(*backend, cache, 0, 48, {{0, 17, 33, 42}, first_slots(43), {20}, {3, 4}}, {1, 0, 1, 1});
  evict(*backend, cache, 1, 48, {first_slots(43), {1, 5, 9}, first_slots(21), first_slots(21)}, {0, 1, 0, 0});
  cache.settle();
  expect_bounds(*backend, cache);
  append_to_all(cache, {43, 21}, {1, 20});
  Cache copy = cache.clone();
  expect_bounds(*backend, copy);
  append_to_all(copy, {44, 41}, {70, 1});
  append_to_all(cache, {44, 41}, {1, 1});  // the original is another's
  EXPECT_EQ(cache.bound_page_bytes(), 2 * kHeadDim * bytes_of(backend->activation_type()));
  EXPECT_EQ(cache.bound_page_bytes(), cache.column_page_bytes());
}

// Of 30 entries the first stays for ever, the newest 8 are those that the last one saw.
TEST_P(CacheOn, BoundsOfPagesFollowASweep) {
  KV_BACKEND_OR_SKIP(backend);
  Cache cache(*backend,
              {.sequences = 1, .layers = 1, .kv_heads = 1, .head_dim = kHeadDim, .page_bounds = true, .window = 8});
  TinyBlock tiny = make_tiny_block(*backend, 1, {0}, {30});
  std::vector<int32_t> expires(30);
  for (int32_t position = 0; position < 30; ++position) expires[position] = position == 0 ? 1000 : position + 8;
  Tensor on_device = ref::upload_array(*backend, expires);
  cache.grow(tiny.block.segments);
  cache.append(0, tiny.block, tiny.keys.ref(), tiny.values.ref(), ref::data_of<int32_t>(on_device));
  expect_bounds(*backend, cache);
  cache.sweep(tiny.block, std::vector<uint8_t>{1}, [](int, Slots<const uint8_t>) {});
  cache.settle();
  EXPECT_EQ(positions(*backend, cache, 0, 0), (std::vector<int32_t>{0, 22, 23, 24, 25, 26, 27, 28, 29}));
  expect_bounds(*backend, cache);
}

}  // namespace
}  // namespace kv
