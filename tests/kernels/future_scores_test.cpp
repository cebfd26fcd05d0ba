#include "kernels/future_scores.h"

#include "tests/ref/future_scores.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, FutureScores);
KV_OVER_BACKENDS(Ops, FutureTable);

using Combine = FutureTableArgs::Combine;

std::vector<float> future_table(Backend& backend, const std::vector<float>& input, FutureTableArgs args) {
  Tensor device = ref::upload_array(backend, input);
  Tensor output(backend, DType::kF32, args.heads * ((args.blocks + args.merge - 1) / args.merge) * args.tokens);
  args.input = ref::data_of<float>(device);
  args.output = ref::data_of<float>(output);
  backend.future_table(args);
  backend.synchronize();
  return ref::download_array<float>(output);
}

TEST_P(FutureTable, TakesTheLargestOfAllLaterBlocks) {
  KV_BACKEND_OR_SKIP(backend);
  // One head, three blocks of two tokens, halved.
  const std::vector<float> blocks = {1, 8, 6, 2, 4, 0};
  EXPECT_EQ(future_table(*backend, blocks, {.heads = 1, .blocks = 3, .tokens = 2, .scale = 0.5f}),
            (std::vector<float>{3, 4, 3, 1, 2, 0}));
  // Only the block itself and the next.
  EXPECT_EQ(future_table(*backend, {1, 2, 9}, {.heads = 1, .blocks = 3, .tokens = 1, .horizon = 2}),
            (std::vector<float>{2, 9, 9}));
}

TEST_P(FutureTable, MergesNeighbouringBlocksAndAShorterLastOne) {
  KV_BACKEND_OR_SKIP(backend);
  // Sums 1+2, 3+4, 5 and maxima 2, 4, 5 of pairs of blocks; then the largest of this and all later ones.
  FutureTableArgs args{.heads = 1, .blocks = 5, .tokens = 1, .merge = 2};
  EXPECT_EQ(future_table(*backend, {1, 2, 3, 4, 5}, args), (std::vector<float>{7, 7, 5}));
  args.combine = Combine::kMax;
  EXPECT_EQ(future_table(*backend, {1, 2, 3, 4, 5}, args), (std::vector<float>{5, 5, 5}));
}

TEST_P(FutureTable, AgreesWithTheDefinition) {
  KV_BACKEND_OR_SKIP(backend);
  const int heads = 3, blocks = 9, tokens = 37;
  const std::vector<float> input = ref::random_values(heads * blocks * tokens, 1);
  for (const int merge : {1, 2, 4, 9, 20}) {
    for (const int horizon : {0, 1, 2, 100}) {
      for (const Combine combine : {Combine::kSum, Combine::kMax}) {
        const std::vector<float> got = future_table(*backend, input,
                                                    {.combine = combine,
                                                     .heads = heads,
                                                     .blocks = blocks,
                                                     .tokens = tokens,
                                                     .merge = merge,
                                                     .horizon = horizon,
                                                     .scale = 0.25f});
        const int64_t size = static_cast<int64_t>(got.size()) / heads;
        for (int head = 0; head < heads; ++head) {
          const std::vector<double> want =
              ref::future_table(ref::slice(input, head * blocks * tokens, blocks * tokens), blocks, tokens, merge,
                                horizon, 0.25, combine == Combine::kSum ? ref::Merge::kSum : ref::Merge::kLargest);
          // A sum of at most nine values below one.
          ref::expect_close(ref::slice(got, head * size, size), want, {.roundings = 9});
        }
      }
    }
  }
}

TEST_P(FutureScores, LooksUpEachEntryByItsPosition) {
  KV_BACKEND_OR_SKIP(backend);
  // Two sequences of one head; positions 0, 3, 6 of nine tokens. The second sequence has nothing left to come.
  const ref::CacheRows rows = ref::random_rows({3, 2, 2}, 1, 16, 1, 0, 3);
  const ref::PagedCache cache(*backend, rows);
  std::vector<float> values(3 * 2 * 9);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  Tensor table = ref::upload_array(*backend, values), from = ref::upload_array<int32_t>(*backend, {1, 2, 0});
  Tensor due = ref::upload_array<uint8_t>(*backend, {1, 1, 0}), scores(*backend, DType::kF32, 3 * 4);
  backend->future_scores({.cache = cache.view(),
                          .table = ref::data_of<float>(table),
                          .from_block = ref::data_of<int32_t>(from),
                          .blocks = 2,
                          .tokens = 9,
                          .rows_due = ref::data_of<uint8_t>(due),
                          .scores = scores.slots<float>(4)});
  backend->synchronize();
  const std::vector<float> got = ref::download_array<float>(scores);
  // Row 0, block 1 starts at 9: 9 + 0, 9 + 3, 9 + 6.
  EXPECT_EQ(ref::slice(got, 0, 3), (std::vector<float>{9, 12, 15}));
  EXPECT_EQ(ref::slice(got, 4, 2), (std::vector<float>{0, 0}));
  ref::expect_untouched(got, 3, 4);
  ref::expect_untouched(got, 6, 12);
}

}  // namespace
}  // namespace kv
