#include <cmath>

#include "kernels/append.h"
#include "kernels/attend.h"
#include "kernels/compact.h"
#include "kernels/key_difference.h"
#include "kernels/redundancy.h"
#include "kernels/window_attention.h"
#include "tests/ref/attend.h"
#include "tests/ref/window_attention.h"
#include "tests/support/close.h"
#include "tests/support/large_on_cuda.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

// Rows whose entries lie so far up in the pools that no 32 bits hold their offsets, in elements or in bytes: behind
// 2^32 keys' elements. An offset that wraps, signed or not, leads to the NaN of the pages below. For a GPU alone: a
// pool is 8.6 GB there. No parameter "cuda" in the names: the sanitizers, which keep a record of every byte, leave them
// out.
constexpr int64_t kElementsBelow = int64_t{1} << 32;

class FarPages : public ref::LargeOnCuda {
 protected:
  void SetUp() override { take_gpu(20'000'000'000); }

  ref::PagedCache far_cache(const ref::CacheRows& rows, int spare_pages = 0) const {
    const int64_t page = int64_t{kPageTokens} * rows.head_dim;
    return {*backend_, rows, spare_pages, (kElementsBelow + page - 1) / page};
  }
};

// One KV head, all query heads its group.
struct Attention {
  const ref::PagedCache& cache;
  std::vector<Segment> segments;
  int group = 1;
  std::vector<float> queries;
  double chain = 0;  // roundings of the longest sum over slots

  int64_t max_count() const {
    int64_t longest = 0;
    for (const Segment& segment : segments) longest = std::max<int64_t>(longest, segment.count);
    return longest;
  }
};

// Returns the reference. Tolerances as in attend_test.cpp.
ref::Attended expect_attention(Backend& backend, const Attention& problem) {
  const ref::CacheRows& rows = problem.cache.rows();
  const double scale = 1 / std::sqrt(static_cast<double>(rows.head_dim));
  const int64_t pitch = rows.max_length();
  const Tensor queries = ref::upload_activations(backend, problem.queries);
  Tensor output(backend, backend.activation_type(), queries.elements());
  Tensor segments = ref::upload_segments(backend, problem.segments);
  Tensor sums(backend, DType::kF32, rows.rows() * problem.group * pitch);
  backend.attend({.queries = queries.ref(),
                  .cache = problem.cache.view(),
                  .segments = ref::segments_of(segments),
                  .segment_count = std::ssize(problem.segments),
                  .max_count = problem.max_count(),
                  .output = output.ref(),
                  .column_sums = sums.slots<float>(pitch),
                  .q_heads = problem.group,
                  .scale = static_cast<float>(scale)});
  ref::Attended want = ref::attend(rows, problem.queries, problem.segments, problem.group, scale, pitch);
  EXPECT_TRUE(ref::outputs_are_close(backend, ref::download_activations(output), want, rows.head_dim, problem.chain));
  const double probability = ref::probability_roundings(want, rows.head_dim, problem.chain);
  const std::vector<float> got = ref::download_array<float>(sums);
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want.sums[i])) continue;  // beyond the row's length
    const ref::Tolerance tolerance{.roundings = probability + static_cast<double>(problem.max_count()),
                                   .magnitude = want.sums[i]};
    EXPECT_TRUE(ref::is_close(got[i], want.sums[i], tolerance)) << "column " << i;
    if (::testing::Test::HasFailure()) break;
  }
  return want;
}

void expect_equal(const ref::CacheRows& got, const ref::CacheRows& want) {
  EXPECT_EQ(got.keys, want.keys);
  EXPECT_EQ(got.values, want.values);
  EXPECT_EQ(got.positions, want.positions);
}

std::vector<float> random_vectors(const Backend& backend, int64_t count, int dim, uint32_t seed) {
  return ref::rounded(backend, ref::random_values(static_cast<size_t>(count * dim), seed));
}

// The last `count` entries of every row arrive by the op; the cache is then as one that held them from the start.
void expect_append(Backend& backend, ref::PagedCache& cache, int32_t count) {
  ref::CacheRows want = cache.rows();
  const int dim = want.head_dim;
  std::vector<int32_t> after;
  std::vector<Segment> segments;
  const std::vector<float> keys = random_vectors(backend, want.rows() * count, dim, 11);
  const std::vector<float> values = random_vectors(backend, want.rows() * count, dim, 12);
  for (int32_t s = 0; s < want.rows(); ++s) {
    const auto row = static_cast<size_t>(s);
    const auto position = static_cast<int32_t>(want.length(s));
    segments.push_back({s, s * count, count, position});
    after.push_back(position + count);
    const std::vector<float> sequence_keys = ref::slice(keys, int64_t{s} * count * dim, int64_t{count} * dim);
    const std::vector<float> sequence_values = ref::slice(values, int64_t{s} * count * dim, int64_t{count} * dim);
    want.keys[row].insert(want.keys[row].end(), sequence_keys.begin(), sequence_keys.end());
    want.values[row].insert(want.values[row].end(), sequence_values.begin(), sequence_values.end());
    for (int32_t i = 0; i < count; ++i) want.positions[row].push_back(position + i);
  }
  cache.set_lengths(after);
  const Tensor k = ref::upload_activations(backend, keys), v = ref::upload_activations(backend, values);
  Tensor words = ref::upload_segments(backend, segments);
  backend.append({.keys = k.ref(),
                  .values = v.ref(),
                  .segments = ref::segments_of(words),
                  .segment_count = std::ssize(segments),
                  .max_count = count,
                  .cache = cache.view(),
                  .pool_keys = cache.pool_keys(),
                  .pool_values = cache.pool_values(),
                  .pool_positions = cache.pool_positions()});
  expect_equal(cache.download(), want);
}

// Every third entry goes.
void expect_compact(Backend& backend, ref::PagedCache& cache) {
  const ref::CacheRows& all = cache.rows();
  const int dim = all.head_dim;
  const int64_t pitch = all.max_length();
  ref::CacheRows want{.head_dim = dim};
  std::vector<uint8_t> keep(static_cast<size_t>(all.rows() * pitch), 0);
  std::vector<int32_t> kept;
  for (int64_t row = 0; row < all.rows(); ++row) {
    const auto r = static_cast<size_t>(row);
    std::vector<float> keys, values;
    std::vector<int32_t> positions;
    for (int64_t slot = 0; slot < all.length(row); ++slot) {
      if (slot % 3 == 1) continue;
      keep[static_cast<size_t>(row * pitch + slot)] = 1;
      const std::vector<float> key = ref::slice(all.keys[r], slot * dim, dim);
      const std::vector<float> value = ref::slice(all.values[r], slot * dim, dim);
      keys.insert(keys.end(), key.begin(), key.end());
      values.insert(values.end(), value.begin(), value.end());
      positions.push_back(all.positions[r][static_cast<size_t>(slot)]);
    }
    kept.push_back(static_cast<int32_t>(positions.size()));
    want.keys.push_back(keys);
    want.values.push_back(values);
    want.positions.push_back(positions);
  }
  const Tensor mask = ref::upload_array(backend, keep);
  backend.compact({.cache = cache.view(),
                   .keep = mask.slots<uint8_t>(pitch),
                   .pool_keys = cache.pool_keys(),
                   .pool_values = cache.pool_values(),
                   .pool_positions = cache.pool_positions()});
  cache.set_lengths(kept);
  expect_equal(cache.download(), want);
}

// Per query head. Tolerances as in window_attention_test.cpp.
void expect_window(Backend& backend, const ref::PagedCache& cache, int window, int group) {
  const ref::CacheRows& rows = cache.rows();
  const int dim = rows.head_dim;
  const int64_t pitch = rows.max_length(), vectors = int64_t{window} * group;
  const std::vector<float> queries = random_vectors(backend, rows.rows() * vectors, dim, 21);
  const Tensor device_queries = ref::upload_activations(backend, queries);
  Tensor scores(backend, DType::kF32, rows.rows() * group * pitch);
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  backend.window_attention({.queries = device_queries.ref(),
                            .cache = cache.view(),
                            .window = window,
                            .q_heads = group,
                            .scale = static_cast<float>(scale),
                            .scores = scores.slots<float>(pitch)});
  const std::vector<float> got = ref::download_array<float>(scores);
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const auto want = ref::window_attention_per_head(ref::slice(queries, row * vectors * dim, vectors * dim),
                                                     rows.keys[static_cast<size_t>(row)], window, group, dim, scale);
    for (int64_t g = 0; g < group; ++g) {
      const std::vector<double>& head_sums = want[static_cast<size_t>(g)];
      const auto slots = static_cast<double>(head_sums.size());
      ref::expect_close(ref::slice(got, (row * group + g) * pitch, std::ssize(head_sums)), head_sums,
                        {.roundings = (dim + 2) * std::sqrt(static_cast<double>(dim)) + slots + window + 8,
                         .magnitude = *std::max_element(head_sums.begin(), head_sums.end())});
    }
  }
}

// Scores of keys are those of the same keys in a pool of their own, to the bit. score(cache, scores) runs the
// op.
template <class Score>
void expect_scores_as_near(Backend& backend, const ref::PagedCache& far, const Score& score) {
  const ref::PagedCache near(backend, far.rows());
  const int64_t pitch = far.rows().max_length();
  const auto scores_of = [&](const ref::PagedCache& cache) {
    Tensor scores(backend, DType::kF32, far.rows().rows() * pitch);
    score(cache.view(), scores.slots<float>(pitch));
    return ref::download_array<float>(scores);
  };
  const std::vector<float> got = scores_of(far), want = scores_of(near);
  for (int64_t row = 0; row < far.rows().rows(); ++row) {
    const int64_t length = far.rows().length(row);
    EXPECT_EQ(ref::slice(got, row * pitch, length), ref::slice(want, row * pitch, length)) << "row " << row;
  }
}

// Head dimensions of the kernels for Hopper and of those for any card.
TEST_F(FarPages, AreReadAndWrittenWhereTheyLie) {
  for (const int dim : {128, 80}) {
    SCOPED_TRACE(::testing::Message() << "head dimension " << dim);
    const std::vector<int32_t> lengths = {300, 177};
    ref::PagedCache cache = far_cache(ref::random_rows(lengths, 1, dim, 3), 2);
    ASSERT_GE(cache.view().pool_pages * kPageTokens * dim, kElementsBelow);
    backend_->check_pages(cache.view());
    constexpr int kGroup = 4;
    // Decoding; blocks of few and of many queries, which different kernels serve.
    for (const int32_t count : {1, 3, 20, 150}) {
      SCOPED_TRACE(::testing::Message() << count << " queries");
      const std::vector<Segment> segments = {{0, 0, count, 300 - count}, {1, count, count, 177 - count}};
      expect_attention(*backend_, {.cache = cache,
                                   .segments = segments,
                                   .group = kGroup,
                                   .queries = random_vectors(*backend_, 2 * count * kGroup, dim, 7),
                                   .chain = 300});
    }
    expect_window(*backend_, cache, 8, kGroup);
    expect_scores_as_near(*backend_, cache, [&](const PagedView& view, Slots<float> scores) {
      backend_->redundancy({.cache = view, .scores = scores});
    });
    expect_scores_as_near(*backend_, cache, [&](const PagedView& view, Slots<float> scores) {
      backend_->key_difference({.cache = view, .scores = scores});
    });
    expect_append(*backend_, cache, 20);
    cache.set_lengths(lengths);
    expect_compact(*backend_, cache);
  }
}

// Half of the attention goes to eight entries from the first to the last: where one is missed, or another read in its
// place, the output is off by far more than its tolerance. The sums by column show every other key.
TEST_F(FarPages, HoldARowOfHalfAMillionTokens) {
  constexpr int32_t kTokens = 500'000, kNeedles = 8;
  constexpr int kDim = 128, kGroup = 2;
  ref::CacheRows rows = ref::random_rows({kTokens}, 1, kDim, 3);
  const std::vector<float> queries = random_vectors(*backend_, kGroup, kDim, 7);
  std::vector<size_t> needles;
  for (int64_t n = 0; n < kNeedles; ++n) {
    const auto slot = static_cast<size_t>((kTokens - 1) * n / (kNeedles - 1));
    for (size_t d = 0; d < kDim; ++d) rows.keys[0][slot * kDim + d] = 2.9f * (queries[d] + queries[kDim + d]);
    needles.push_back(slot);
  }
  const ref::PagedCache cache = far_cache(rows);
  backend_->check_pages(cache.view());
  // A kernel that added half a million terms one after the other would lose more than this, and be slow.
  constexpr double kChain = 1 << 14;
  const ref::Attended want = expect_attention(
      *backend_,
      {.cache = cache, .segments = {{0, 0, 1, kTokens - 1}}, .group = kGroup, .queries = queries, .chain = kChain});
  for (const size_t slot : needles) EXPECT_GT(want.sums[slot], 0.03) << slot;
}

}  // namespace
}  // namespace kv
