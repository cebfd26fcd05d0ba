#include "kernels/attend.h"

#include <algorithm>
#include <cmath>

#include "kernels/expiry.h"
#include "tests/ref/attend.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Attend);

// The kernels for any card, which a card with faster ones of its own does not choose by itself.
class AttendOnAnyCard : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ops, AttendOnAnyCard, ::testing::Values("cuda"), ref::backend_case);

struct Sequence {
  int32_t length;  // of its first KV head; head h holds h fewer, but at least `count`
  int32_t count;
};

struct Shape {
  int kv_heads;
  int group;
  int head_dim;
  std::vector<Sequence> sequences;
  float query_size = 1;
  float rise = 0;  // added to the logits, a slot: maxima rise with every tile of keys
  float sink = 0;  // added to the logits of slot 0
  int window = 0;  // tokens for which an entry is seen, but for every third, which is for ever; 0: all are
};

struct Problem {
  Problem(Backend& backend, const Shape& shape)
      : q_heads(shape.kv_heads * shape.group),
        scale(1 / std::sqrt(static_cast<float>(shape.head_dim))),
        cache(backend, rows_of(shape), 1) {
    int32_t token = 0;
    for (const Sequence& sequence : shape.sequences) {
      const auto index = static_cast<int32_t>(segments.size());
      segments.push_back({index, token, sequence.count, sequence.length - sequence.count});
      token += sequence.count;
      max_count = std::max<int64_t>(max_count, sequence.count);
    }
    // Packed blocks come in any order of sequences.
    std::reverse(segments.begin(), segments.end());
    queries = ref::random_values(static_cast<size_t>(token) * q_heads * shape.head_dim, 7);
    for (float& q : queries) q *= shape.query_size;
    if (is_biased(shape)) {
      for (size_t at = 0; at < queries.size(); at += shape.head_dim) queries[at] = 1;
    }
    queries = ref::rounded(backend, queries);
    pitch = cache.rows().max_length() + 3;
  }

  static ref::CacheRows rows_of(const Shape& shape) {
    std::vector<int32_t> lengths;
    for (const Sequence& sequence : shape.sequences) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        lengths.push_back(std::max(sequence.count, sequence.length - head));
      }
    }
    ref::CacheRows rows = ref::random_rows(lengths, shape.kv_heads, shape.head_dim, 3);
    if (shape.window > 0) add_expiries(rows, shape);
    if (!is_biased(shape)) return rows;
    // The first value of every query is 1, so that the first value of a key shifts its logits.
    for (std::vector<float>& keys : rows.keys) {
      for (size_t at = 0; at < keys.size(); at += shape.head_dim) {
        const int64_t key = at / shape.head_dim;
        const float shift = shape.rise * static_cast<float>(key) + (at == 0 ? shape.sink : 0);
        keys[at] = shift * std::sqrt(static_cast<float>(shape.head_dim));
      }
    }
    return rows;
  }
  // A row's newest entry is its sequence's newest token.
  static void add_expiries(ref::CacheRows& rows, const Shape& shape) {
    for (int64_t row = 0; row < rows.rows(); ++row) {
      const Sequence& sequence = shape.sequences[row / shape.kv_heads];
      const auto missing = static_cast<int32_t>(sequence.length - rows.length(row));
      std::vector<int32_t> expires;
      for (int32_t slot = 0; slot < rows.length(row); ++slot) {
        expires.push_back(slot % 3 == 0 ? kNeverExpires : slot + missing + shape.window);
      }
      rows.expires.push_back(std::move(expires));
      rows.expiring = std::max<int64_t>(rows.expiring, shape.window + sequence.count);
    }
  }
  ref::Attended reference() const { return ref::attend(cache.rows(), queries, segments, q_heads, scale, pitch); }
  static bool is_biased(const Shape& shape) { return shape.rise != 0 || shape.sink != 0; }

  int q_heads;
  float scale;
  ref::PagedCache cache;
  std::vector<Segment> segments;
  int64_t max_count = 0;
  std::vector<float> queries;
  int64_t pitch = 0;
};

struct Result {
  std::vector<float> output, sums, maxima, log_sums;
  bool operator==(const Result&) const = default;
};

enum class Asked { kAll, kLogSums };

Result run(Backend& backend, Problem& problem, bool on_any_card = false, Asked asked = Asked::kAll) {
  const Tensor queries = ref::upload_activations(backend, problem.queries);
  Tensor output(backend, backend.activation_type(), queries.elements());
  Tensor segments = ref::upload_segments(backend, problem.segments);
  const int64_t columns = problem.cache.rows().rows() * (problem.q_heads / problem.cache.rows().kv_heads);
  Tensor sums(backend, DType::kF32, columns * problem.pitch), maxima(backend, DType::kF32, columns * problem.pitch);
  Tensor log_sums(backend, DType::kF32, queries.elements() / problem.cache.rows().head_dim);
  backend.attend({.queries = queries.ref(),
                  .cache = problem.cache.view(),
                  .segments = ref::segments_of(segments),
                  .segment_count = static_cast<int64_t>(problem.segments.size()),
                  .max_count = problem.max_count,
                  .output = output.ref(),
                  .column_sums = asked == Asked::kAll ? sums.slots<float>(problem.pitch) : Slots<float>{},
                  .column_max = asked == Asked::kAll ? maxima.slots<float>(problem.pitch) : Slots<float>{},
                  .log_sums = log_sums.ref().as<float>(),
                  .q_heads = problem.q_heads,
                  .scale = problem.scale,
                  .on_any_card = on_any_card});
  backend.synchronize();
  return {ref::download_activations(output), ref::download_array<float>(sums), ref::download_array<float>(maxima),
          ref::download_array<float>(log_sums)};
}

// Compares as expect_close; NaN in the reference means: not written.
void expect_columns(const std::vector<float>& got, const std::vector<double>& want, double roundings) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << "place " << i << " was written";
    } else {
      ASSERT_TRUE(ref::is_close(got[i], want[i], {.roundings = roundings, .magnitude = std::max(want[i], 1e-30)}))
          << "place " << i;
    }
  }
}

// A sum that is off by a relative error has a logarithm that is off by as much.
void expect_log_sums(const std::vector<float>& got, const std::vector<double>& want, double roundings) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(ref::is_close(got[i], want[i], {.roundings = roundings, .magnitude = std::max(1.0, std::abs(want[i]))}))
        << "vector " << i;
  }
}

void check(Backend& backend, const Shape& shape, bool on_any_card) {
  Problem problem(backend, shape);
  const Result got = run(backend, problem, on_any_card);
  const ref::Attended want = problem.reference();
  const auto slots = static_cast<double>(problem.cache.rows().max_length());
  ASSERT_TRUE(ref::outputs_are_close(backend, got.output, want, shape.head_dim, slots));
  if (shape.query_size > 100) return;  // large logits: tiny probabilities have no relative accuracy
  const double probability = ref::probability_roundings(want, shape.head_dim, slots);
  expect_columns(got.sums, want.sums, probability + static_cast<double>(problem.max_count));
  expect_columns(got.maxima, want.maxima, probability);
  expect_log_sums(got.log_sums, want.log_sums, probability);
  expect_log_sums(run(backend, problem, on_any_card, Asked::kLogSums).log_sums, want.log_sums, probability);
}

std::vector<Shape> shapes() {
  return {
      {1, 1, 16, {{1, 1}}},
      {1, 1, 16, {{2, 2}}},
      {2, 2, 64, {{15, 1}, {16, 1}, {17, 1}, {33, 1}}},      // decode, around a page
      {2, 2, 64, {{23, 23}, {24, 24}, {25, 25}}},            // around a tile of 24 queries
      {1, 1, 64, {{47, 47}, {48, 48}, {49, 49}, {97, 97}}},  // around tiles of 48 queries
      {1, 4, 128, {{31, 12}, {32, 13}, {33, 2}}},            // around a panel of 32 slots
      {2, 4, 64, {{127, 5}, {128, 1}, {129, 7}, {257, 3}}},  // around blocks of values; decode among them
      {2, 2, 16, {{300, 260}, {65, 0}, {40, 1}}},            // an ended sequence; narrow heads
      {1, 3, 64, {{63, 30}, {64, 16}, {65, 17}}},            // a group that does not divide the tile
      {2, 1, 80, {{70, 50}, {30, 1}}},                       // a head that is no whole panel
      {1, 2, 64, {{900, 900}}},                              // more tiles than shares
      {2, 4, 128, {{700, 1}, {90, 2}, {300, 3}}},            // decode of several tokens, split over slots on a GPU
      {1, 16, 64, {{2500, 1}, {4, 0}}},                      // a long decode of one KV head, beside an ended sequence
      {2, 2, 64, {{200, 100}, {90, 1}}, 200.0f},             // probabilities that underflow to 0
      {2, 4, 128, {{129, 129}, {128, 128}, {127, 127}}},     // around tiles of 128 slots and of 32 queries
      {1, 1, 128, {{517, 400}, {260, 0}, {385, 129}}},       // blocks that attend to an older cache
      {1, 8, 64, {{390, 131}, {256, 40}}},                   // many heads a group
      {2, 7, 64, {{200, 60}, {333, 10}}},                    // a group that does not divide tiles of 64, 128 or 192
      {1, 5, 128, {{2600, 40}, {600, 3}}},                   // few tiles over long rows, split over slots on a GPU
      {1, 4, 64, {{500, 260}}, 1, 0.125f},                   // the maximum rises with every tile
      {1, 4, 128, {{500, 260}}, 1, 0.125f},                  //
      {1, 4, 64, {{400, 300}}, 1, 0, 20},                    // one column that takes nearly everything
      {1, 4, 128, {{400, 300}}, 1, 0, 20},                   //
      {2, 2, 64, {{9, 1}, {3000, 1}, {1, 1}, {40, 1}, {17, 0}, {700, 1}}},  // a very ragged decode
      {1, 16, 128, {{2600, 1}, {40, 1}}},  // so many pairs in so many pieces that they are joined in several rounds
      {1, 16, 256, {{2600, 1}, {5, 1}}},   //
      {2, 4, 80, {{1500, 1}, {33, 1}}},    // pieces wider than the heads
      {2, 7, 128, {{130, 2}, {33, 2}, {65, 1}}},  // decode, a group of 7; a query that sees no key of the last 32
      {2, 2, 20, {{40, 1}, {17, 2}}},             // decode with heads that are no whole pieces of 16 bytes
      {1, 2, 32, {{70, 1}}},                      //
      {1, 4, 128, {{500, 1}}, 1, 0.125f},         // decode, rising
      {1, 4, 128, {{400, 3}}, 1, 0, 20},          // decode with a sink
      {1, 4, 256, {{150, 70}, {33, 5}}},          // blocks of wide heads
      {4, 1, 16, std::vector<Sequence>(4500, {18, 1})},  // more rows than a GPU's block lists at once
  };
}

void check_shapes(Backend& backend, bool on_any_card) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(::testing::Message() << shape.kv_heads << " heads, group " << shape.group << ", dim " << shape.head_dim
                                      << ", length " << shape.sequences[0].length);
    check(backend, shape, on_any_card);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(Attend, MatchesTheReferenceOverShapes) {
  KV_BACKEND_OR_SKIP(backend);
  check_shapes(*backend, false);
}

TEST_P(AttendOnAnyCard, MatchesTheReferenceOverShapes) {
  KV_BACKEND_OR_SKIP(backend);
  check_shapes(*backend, true);
}

// Swept up to the block: of what came before it, a window's entries and those for ever. Then from the very first token.
TEST_P(Attend, WhatHasExpiredIsNotSeen) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int window : {1, 7, 64}) {
    for (Shape shape : shapes()) {
      if (shape.sequences.size() > 100) continue;
      shape.window = window;
      SCOPED_TRACE(::testing::Message() << "window " << window << ", " << shape.kv_heads << " heads, dim "
                                        << shape.head_dim << ", length " << shape.sequences[0].length);
      Problem problem(*backend, shape);
      const Result got = run(*backend, problem);
      const auto slots = static_cast<double>(problem.cache.rows().max_length());
      ref::CacheRows rows = problem.cache.rows();
      for (int64_t row = 0; row < rows.rows(); ++row) {  // as the view promises, which says how many may expire
        for (int64_t slot = 0; slot < rows.length(row) - rows.expiring; ++slot) rows.expires[row][slot] = kNeverExpires;
      }
      const ref::Attended want =
          ref::attend(rows, problem.queries, problem.segments, problem.q_heads, problem.scale, problem.pitch);
      ASSERT_TRUE(ref::outputs_are_close(*backend, got.output, want, shape.head_dim, slots));
      if (shape.query_size > 100) continue;
      const double probability = ref::probability_roundings(want, shape.head_dim, slots);
      expect_columns(got.sums, want.sums, probability + static_cast<double>(problem.max_count));
      expect_columns(got.maxima, want.maxima, probability);
    }
  }
}

// What the tolerance is for: outputs over many slots are small.
TEST_P(Attend, AnotherPageOfValuesInThePlaceOfOneIsSeen) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int32_t length : {700, 2500}) {
    SCOPED_TRACE(length);
    Problem problem(*backend, {1, 2, 64, {{length, 3}}});
    const Result got = run(*backend, problem);
    const auto is_close = [&](const ref::CacheRows& rows) {
      const ref::Attended want =
          ref::attend(rows, problem.queries, problem.segments, problem.q_heads, problem.scale, problem.pitch);
      return ref::outputs_are_close(*backend, got.output, want, rows.head_dim, length);
    };
    EXPECT_TRUE(is_close(problem.cache.rows()));
    ref::CacheRows swapped = problem.cache.rows();
    float* values = swapped.values[0].data();
    constexpr int kPage = kPageTokens * 64;
    std::swap_ranges(values + 5 * kPage, values + 6 * kPage, values + 40 * kPage);
    EXPECT_FALSE(is_close(swapped));
  }
}

TEST_P(Attend, NothingToDoWritesNothing) {
  KV_BACKEND_OR_SKIP(backend);
  Problem problem(*backend, {1, 2, 16, {{5, 0}, {9, 0}}});
  const Result got = run(*backend, problem);
  EXPECT_TRUE(got.output.empty());
  ref::expect_untouched(got.sums, 0, static_cast<int64_t>(got.sums.size()));
}

TEST_P(Attend, EqualKeysShareTheirProbabilityEvenly) {
  KV_BACKEND_OR_SKIP(backend);
  // Zero queries: query i of 3 new tokens sees 1 + i of 3 slots, each with 1 / (i + 1).
  Problem problem(*backend, {1, 1, 16, {{3, 3}}});
  std::fill(problem.queries.begin(), problem.queries.end(), 0.0f);
  const Result got = run(*backend, problem);
  const std::vector<double> sums = {1 + 1.0 / 2 + 1.0 / 3, 1.0 / 2 + 1.0 / 3, 1.0 / 3}, maxima = {1, 0.5, 1.0 / 3};
  ref::expect_close(ref::slice(got.sums, 0, 3), sums, {.roundings = 4, .magnitude = 2});
  ref::expect_close(ref::slice(got.maxima, 0, 3), maxima, {.roundings = 2});
}

TEST_P(Attend, IsTheSameForAnyNumberOfThreads) {
  KV_BACKEND_OR_SKIP(backend);
  Problem problem(*backend, {2, 2, 64, {{700, 650}, {130, 1}, {90, 40}}});
  const auto with_threads = [&](int count) {
    const ref::Threads threads(count);
    Result result = run(*backend, problem);
    // Unwritten places are NaN, which equals nothing.
    for (float& value : result.sums) value = std::isnan(value) ? -1 : value;
    for (float& value : result.maxima) value = std::isnan(value) ? -1 : value;
    return result;
  };
  const Result alone = with_threads(1);
  EXPECT_EQ(alone, with_threads(2));
  EXPECT_EQ(alone, with_threads(3));
}

}  // namespace
}  // namespace kv
