#include "kernels/lag_relative.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ref/lag_relative.h"
#include "tests/support/close.h"
#include "tests/support/largest.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, LagRelative);

constexpr int64_t kPitch = 136;

std::vector<float> scores_of(Backend& backend, const ref::PagedCache& cache, LagRelativeArgs args,
                             const std::vector<uint8_t>& due = {}) {
  Tensor device_due = ref::upload_array(backend, due), scores(backend, DType::kF32, cache.rows().rows() * kPitch);
  args.cache = cache.view();
  args.rows_due = due.empty() ? nullptr : ref::data_of<uint8_t>(device_due);
  args.scores = scores.slots<float>(kPitch);
  backend.lag_relative(args);
  backend.synchronize();
  return ref::download_array<float>(scores);
}

// Sink 9 9, then two partitions of two. The second has channels 0..2 and 0..4, in which (1, 2) lies at 1/2, 1/2, spread
// 0, and (2, 0) at 1, 0, spread 1/√2. Values repeat the keys, so their softmax is the mean, too.
TEST_P(LagRelative, MeasuresSpreadInTheRangeOfTheNextPartition) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<float> entries = {9, 9, 1, 2, 2, 0, 0, 4, 2, 0, 7, 7};
  const ref::PagedCache cache(*backend, {.kv_heads = 1,
                                         .head_dim = 2,
                                         .keys = {entries},
                                         .values = {entries},
                                         .positions = {{0, 1, 2, 3, 4, 5}},
                                         .columns = {{}}});
  const auto scores = [&](LagRelativeArgs::Scale scale) {
    return ref::slice(scores_of(*backend, cache, {.sinks = 1, .lag = 2, .scale = scale}), 0, 6);
  };
  const double wide = std::exp(std::sqrt(0.5)), share = wide / (1 + wide);
  ref::expect_close(scores(LagRelativeArgs::Scale::kShare), std::vector<double>{1, 1 - share, share, 1, 1, 1},
                    {.roundings = 4});
  EXPECT_EQ(scores(LagRelativeArgs::Scale::kRank), (std::vector<float>{1, 0, 0.5F, 1, 1, 1}));
}

TEST_P(LagRelative, KeepsTheNewestOfAShortRow) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::PagedCache cache(*backend, ref::random_rows({5, 2}, 2, 8, 3));
  const std::vector<float> got = scores_of(*backend, cache, {.sinks = 3, .lag = 2});
  EXPECT_EQ(ref::slice(got, 0, 5), (std::vector<float>{1, 1, 1, 0, 0.5F}));
  EXPECT_EQ(ref::slice(got, kPitch, 2), (std::vector<float>{1, 1}));
}

// A channel that never changes has no range: it counts as 0, and nothing is divided by it.
TEST_P(LagRelative, CountsAConstantChannelAsZero) {
  KV_BACKEND_OR_SKIP(backend);
  ref::CacheRows rows = ref::random_rows({40}, 1, 4, 8);
  for (size_t j = 0; j < 40; ++j) rows.keys[0][4 * j + 1] = 3;
  const ref::PagedCache cache(*backend, rows);
  const std::vector<float> got =
      scores_of(*backend, cache, {.sinks = 2, .lag = 8, .scale = LagRelativeArgs::Scale::kShare});
  const auto want = ref::lag_shares(cache.rows().keys[0], cache.rows().values[0], 4, 2, 8);
  ref::expect_close(ref::slice(got, 0, 40), want, {.roundings = 8});
}

// The double arithmetic of both ends in one rounding to f32; what comes before it, the difference and the extent of a
// channel in f32, moves a spread σ by 3 roundings of its size, and a share by its own size times that.
TEST_P(LagRelative, SharesAgreeWithDoubleArithmeticAndRowsNotDueStay) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int dim : {1, 20, 64, 256}) {
    const ref::PagedCache cache(*backend, ref::random_rows({1, 0, 15, 35, 36, 37, 100, 133}, 2, dim, 4), 2);
    const ref::CacheRows& rows = cache.rows();
    const std::vector<uint8_t> due = {1, 1, 0, 1, 1, 1, 1, 1};
    const std::vector<float> got =
        scores_of(*backend, cache, {.sinks = 4, .lag = 16, .scale = LagRelativeArgs::Scale::kShare}, due);
    for (int64_t row = 0; row < rows.rows(); ++row) {
      const auto at = static_cast<size_t>(row);
      const int64_t count = due[at] ? rows.length(row) : 0;
      if (count > 0) {
        ref::expect_close(ref::slice(got, row * kPitch, count),
                          ref::lag_shares(rows.keys[at], rows.values[at], dim, 4, 16), {.roundings = 8});
      }
      ref::expect_untouched(got, row * kPitch + count, (row + 1) * kPitch);
    }
  }
}

// Ranks follow the shares; two shares that double arithmetic has closer than f32 may stand either way.
TEST_P(LagRelative, RanksOrderEachPartitionByItsShares) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kSinks = 3, kLag = 40, kLength = 130, kDim = 64;
  const ref::PagedCache cache(*backend, ref::random_rows({kLength, 90}, 2, kDim, 9));
  const std::vector<float> got = scores_of(*backend, cache, {.sinks = kSinks, .lag = kLag});
  const auto shares = ref::lag_shares(cache.rows().keys[0], cache.rows().values[0], kDim, kSinks, kLag);
  for (const int first : {kSinks, kSinks + kLag}) {
    std::vector<int> by_rank(kLag, -1);
    for (int i = 0; i < kLag; ++i) {
      const int rank = static_cast<int>(std::lround(got[first + i] * kLag));
      ASSERT_TRUE(rank >= 0 && rank < kLag && by_rank[rank] < 0) << "slot " << first + i;
      by_rank[rank] = first + i;
    }
    for (int rank = 1; rank < kLag; ++rank) {
      EXPECT_GE(shares[by_rank[rank]] - shares[by_rank[rank - 1]], -1e-7) << "rank " << rank;
    }
  }
  for (int slot = 0; slot < kLength; ++slot) {
    if (slot < kSinks || slot >= kSinks + 2 * kLag) {
      EXPECT_EQ(got[slot], 1.0F) << slot;
    }
  }
}

}  // namespace
}  // namespace kv
