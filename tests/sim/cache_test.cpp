#include "sim/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sim/source.h"
#include "tests/ref/backends.h"

namespace kv {
namespace {

constexpr int kHeadDim = 2;

// A block of `counts[s]` tokens whose key is (position, row-independent −position) and value (10·position, 0).
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
        values.insert(values.end(), {10 * position, static_cast<float>(s)});
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

// Positions of a row's slots, read through its pages.
std::vector<int32_t> positions(const Cache& cache, int layer, int64_t row) {
  const PagedView view = cache.view(layer);
  std::vector<int32_t> result;
  for (int32_t slot = 0; slot < cache.lengths(layer)[static_cast<size_t>(row)]; ++slot) {
    const int32_t page = view.page_table[row * view.max_pages + slot / kPageTokens];
    const int64_t place = static_cast<int64_t>(page) * kPageTokens + slot % kPageTokens;
    EXPECT_EQ(view.keys.as<float>()[place * kHeadDim], static_cast<float>(view.positions[place]));
    EXPECT_EQ(view.values.as<float>()[place * kHeadDim], 10 * static_cast<float>(view.positions[place]));
    result.push_back(view.positions[place]);
  }
  return result;
}

TEST(Cache, AppendsRaggedSequencesInOrderOfPosition) {
  const auto backend = make_backend("cpu");
  Cache cache(*backend, {.sequences = 2, .layers = 1, .kv_heads = 2, .head_dim = kHeadDim});
  append(cache, 0, make_tiny_block(*backend, 2, {0, 0}, {3, 17}));
  append(cache, 0, make_tiny_block(*backend, 2, {3, 17}, {2, 0}));
  EXPECT_EQ(positions(cache, 0, 0), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(positions(cache, 0, 1), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(positions(cache, 0, 2).size(), 17u);
  EXPECT_EQ(positions(cache, 0, 3).back(), 16);
  EXPECT_EQ(cache.entries(), 2 * 5 + 2 * 17);
  EXPECT_EQ(cache.used_pages(), 2 * 1 + 2 * 2);  // 5 entries fit a page, 17 need two
}

TEST(Cache, EvictionMovesSurvivorsTogetherAndFreesTheirPages) {
  const auto backend = make_backend("cpu");
  Cache cache(*backend, {.sequences = 1, .layers = 1, .kv_heads = 2, .head_dim = kHeadDim});
  append(cache, 0, make_tiny_block(*backend, 2, {0}, {20}));
  ASSERT_EQ(cache.used_pages(), 4);
  std::vector<uint8_t> keep(2 * 32, 0);
  for (const int slot : {0, 7, 18}) keep[static_cast<size_t>(slot)] = 1;
  const std::vector<uint8_t> due = {1, 0};
  cache.evict(0, keep.data(), 32, due.data());
  EXPECT_EQ(cache.lengths(0)[0], 20) << "the backend counts, the host learns of it when the event is over";
  cache.settle();
  EXPECT_EQ(positions(cache, 0, 0), (std::vector<int32_t>{0, 7, 18}));
  EXPECT_EQ(positions(cache, 0, 1).size(), 20u) << "a row that is not due stays as it is";
  EXPECT_EQ(cache.used_pages(), 1 + 2);
  EXPECT_EQ(cache.peak_pages(), 4);
  EXPECT_EQ(cache.view(0).lengths[0], 3);
  append(cache, 0, make_tiny_block(*backend, 2, {20}, {1}));
  EXPECT_EQ(positions(cache, 0, 0), (std::vector<int32_t>{0, 7, 18, 20}));
}

// An event cuts one layer after the other, each row to a length of its own, and settles them all at once.
TEST(Cache, LayersOfOneEventKeepWhatTheirMasksSay) {
  const auto backend = make_backend("cpu");
  Cache cache(*backend, {.sequences = 1, .layers = 2, .kv_heads = 2, .head_dim = kHeadDim});
  TinyBlock block = make_tiny_block(*backend, 2, {0}, {40});
  cache.grow(block.block.segments);
  const std::vector<uint8_t> due = {1, 1};
  const int lengths[2][2] = {{3, 17}, {40, 0}};
  for (int layer = 0; layer < 2; ++layer) {
    cache.append(layer, block.block, block.keys.ref(), block.values.ref());
    std::vector<uint8_t> keep(2 * 48, 0);
    for (size_t row = 0; row < 2; ++row) std::fill_n(keep.begin() + row * 48, lengths[layer][row], uint8_t{1});
    cache.evict(layer, keep.data(), 48, due.data());
  }
  cache.settle();
  for (int layer = 0; layer < 2; ++layer) {
    for (size_t row = 0; row < 2; ++row) EXPECT_EQ(cache.lengths(layer)[row], lengths[layer][row]);
  }
  EXPECT_EQ(cache.used_pages(), (1 + 2) + (3 + 0));
  EXPECT_EQ(cache.view(0).max_length, 17);
  EXPECT_EQ(cache.view(1).max_length, 40);
}

TEST(Cache, EntryColumnsStartAtZeroMoveWithTheirEntryAndAreCounted) {
  const auto backend = make_backend("cpu");
  Cache cache(*backend, {.sequences = 1, .layers = 1, .kv_heads = 1, .head_dim = kHeadDim, .column_width = 1});
  append(cache, 0, make_tiny_block(*backend, 1, {0}, {4}));
  const PagedView view = cache.view(0);
  float* page = cache.columns() + static_cast<int64_t>(view.page_table[0]) * kPageTokens;
  for (int slot = 0; slot < 4; ++slot) EXPECT_EQ(page[slot], 0.0f);
  page[3] = 7.0f;
  std::vector<uint8_t> keep(16, 0);
  keep[1] = keep[3] = 1;
  const uint8_t due = 1;
  cache.evict(0, keep.data(), 16, &due);
  EXPECT_EQ(page[0], 0.0f);
  EXPECT_EQ(page[1], 7.0f);
  EXPECT_EQ(cache.column_page_bytes(), 16u * 4);
  EXPECT_EQ(cache.page_bytes(), 16u * (2 * kHeadDim * 4 + 4) + 16u * 4);
}

TEST(Cache, ResetGivesBackEveryPage) {
  const auto backend = make_backend("cpu");
  Cache cache(*backend, {.sequences = 1, .layers = 3, .kv_heads = 1, .head_dim = kHeadDim});
  cache.grow(make_tiny_block(*backend, 1, {0}, {33}).block.segments);
  EXPECT_EQ(cache.used_pages(), 9);
  cache.reset();
  EXPECT_EQ(cache.used_pages(), 0);
  EXPECT_EQ(cache.entries(), 0);
  append(cache, 1, make_tiny_block(*backend, 1, {0}, {2}));
  EXPECT_EQ(positions(cache, 1, 0), (std::vector<int32_t>{0, 1}));
}

// 3 of 40 entries stay, in one page of three: the pool keeps the other two, a copy has no use for them.
TEST(Cache, ACopyTakesOnlyWhatIsHeldAndTheRoomThatIsAskedFor) {
  const auto backend = make_backend("cpu");
  Cache cache(*backend, {.sequences = 2, .layers = 1, .kv_heads = 1, .head_dim = kHeadDim, .column_width = 1});
  append(cache, 0, make_tiny_block(*backend, 1, {0, 0}, {40, 20}));
  const PagedView view = cache.view(0);
  for (int slot = 0; slot < 16; ++slot) {
    cache.columns()[static_cast<int64_t>(view.page_table[2]) * kPageTokens + slot] = 100.0f + static_cast<float>(slot);
  }
  std::vector<uint8_t> keep(2 * 48, 0);
  for (const int slot : {0, 35, 39}) keep[static_cast<size_t>(slot)] = 1;
  const std::vector<uint8_t> due = {1, 0};
  cache.evict(0, keep.data(), 48, due.data());
  cache.settle();
  ASSERT_EQ(cache.bytes(), 5 * cache.page_bytes());

  const Cache copy = cache.clone();
  EXPECT_EQ(copy.bytes(), 3 * cache.page_bytes());
  EXPECT_EQ(copy.bytes(), cache.clone_bytes());
  EXPECT_EQ(copy.used_pages(), 3);
  EXPECT_EQ(copy.used_pages(0), 1);
  EXPECT_EQ(copy.used_pages(1), 2);
  EXPECT_EQ(positions(copy, 0, 0), (std::vector<int32_t>{0, 35, 39}));
  EXPECT_EQ(positions(copy, 0, 1), positions(cache, 0, 1));
  const float* columns = copy.view(0).columns + static_cast<int64_t>(copy.view(0).page_table[0]) * kPageTokens;
  EXPECT_EQ(std::vector<float>(columns, columns + 3), (std::vector<float>{0, 103, 107}));

  // 3 + 14 entries take a page more, 20 + 12 do not.
  const std::vector<int32_t> room = {14, 12};
  Cache roomy = cache.clone(cache.pages_with(room));
  EXPECT_EQ(roomy.bytes(), 4 * cache.page_bytes());
  EXPECT_EQ(roomy.bytes(), cache.clone_bytes(cache.pages_with(room)));
  EXPECT_EQ(roomy.growth_bytes(room), 0U);
  append(roomy, 0, make_tiny_block(*backend, 1, {40, 20}, {14, 12}));
  EXPECT_EQ(roomy.bytes(), 4 * cache.page_bytes()) << "what was foreseen needs no larger pool";
  EXPECT_EQ(positions(roomy, 0, 0).back(), 53);
  EXPECT_EQ(positions(cache, 0, 0), (std::vector<int32_t>{0, 35, 39})) << "the original is another's";
  EXPECT_EQ(copy.growth_bytes(room), 4 * cache.page_bytes());
}

TEST(Cache, RoomForSeveralStepsIsTakenAtOnceAndFilledOneByOne) {
  const auto backend = make_backend("cpu");
  Cache cache(*backend, {.sequences = 2, .layers = 2, .kv_heads = 1, .head_dim = kHeadDim});
  append(cache, 1, make_tiny_block(*backend, 1, {0, 0}, {15, 3}));
  TinyBlock step = make_tiny_block(*backend, 1, {15, 3}, {1, 0});
  cache.grow(step.block.segments, 3);
  EXPECT_EQ(cache.used_pages(), 2 * (2 + 1)) << "15 + 3 entries need two pages";
  EXPECT_EQ(cache.view(0).max_length, 18);
  EXPECT_EQ(cache.view(1).lengths[0], 16) << "only the first step is counted";
  cache.append(1, step.block, step.keys.ref(), step.values.ref());
  cache.advance(step.block.segments);
  EXPECT_EQ(cache.lengths(1)[0], 17);
  EXPECT_EQ(cache.lengths(1)[1], 3);
  EXPECT_EQ(cache.view(1).lengths[0], 16) << "the op `advance` counts on the backend";
}

}  // namespace
}  // namespace kv
