#include "kernels/count_at_least.h"

#include <cmath>

#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, CountAtLeast);

constexpr int32_t kUntouched = -7;

struct Case {
  std::vector<int32_t> lengths;
  int64_t pitch = 0;
  std::vector<float> scores = {};  // [rows, pitch]
  float threshold = 0;
  int32_t sinks = 0;
  int32_t recent = 0;
  std::vector<uint8_t> due = {};
  int position_gap = 1;

  float score(size_t row, int32_t slot) const {
    return scores[row * static_cast<size_t>(pitch) + static_cast<size_t>(slot)];
  }
};

std::vector<int32_t> counted(Backend& backend, const Case& c) {
  const ref::PagedCache cache(backend, ref::random_rows(c.lengths, 1, 16, 1, 0, c.position_gap));
  Tensor scores = ref::upload_array(backend, c.scores), due = ref::upload_array(backend, c.due);
  std::vector<int32_t> counts(c.lengths.size(), kUntouched);
  Tensor device = ref::upload_array(backend, counts);
  backend.count_at_least({.cache = cache.view(),
                          .scores = scores.slots<float>(c.pitch),
                          .threshold = c.threshold,
                          .sinks = c.sinks,
                          .recent = c.recent,
                          .rows_due = c.due.empty() ? nullptr : ref::data_of<uint8_t>(due),
                          .counts = ref::data_of<int32_t>(device)});
  device.download(counts.data(), counts.size() * sizeof(int32_t));
  return counts;
}

std::vector<int32_t> expected(const Case& c) {
  std::vector<int32_t> counts;
  for (size_t row = 0; row < c.lengths.size(); ++row) {
    counts.push_back(c.due.empty() || c.due[row] ? 0 : kUntouched);
    for (int32_t slot = 0; counts.back() != kUntouched && slot < c.lengths[row]; ++slot) {
      const bool is_protected = slot * c.position_gap < c.sinks || slot >= c.lengths[row] - c.recent;
      if (is_protected || c.score(row, slot) >= c.threshold) ++counts[row];
    }
  }
  return counts;
}

TEST_P(CountAtLeast, AScoreAtTheThresholdCounts) {
  KV_BACKEND_OR_SKIP(backend);
  const Case c{
      .lengths = {4, 0, 3}, .pitch = 4, .scores = {1, 2, 3, 4, NAN, NAN, NAN, NAN, 2, 2, 1, NAN}, .threshold = 2};
  EXPECT_EQ(counted(*backend, c), (std::vector<int32_t>{3, 0, 2}));
}

TEST_P(CountAtLeast, TheProtectedCountUnread) {
  KV_BACKEND_OR_SKIP(backend);
  // Positions 0, 3, 6, 9, 12: two of them are below 4.
  Case c{.lengths = {5}, .pitch = 5, .scores = {NAN, NAN, -1, 1, NAN}, .sinks = 4, .recent = 1, .position_gap = 3};
  EXPECT_EQ(counted(*backend, c), (std::vector<int32_t>{4}));
  c.recent = 9;  // more than there are
  EXPECT_EQ(counted(*backend, c), (std::vector<int32_t>{5}));
}

TEST_P(CountAtLeast, InfinitiesAreNumbersAndNaNIsBelowAll) {
  KV_BACKEND_OR_SKIP(backend);
  Case c{.lengths = {4}, .pitch = 4, .scores = {INFINITY, -INFINITY, NAN, 0}, .threshold = -3e38f};
  EXPECT_EQ(counted(*backend, c), (std::vector<int32_t>{2}));
}

// Lengths around the threads of a block, with rows that wait.
TEST_P(CountAtLeast, DrawnScoresAgreeWithTheReference) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int32_t length : {1, 31, 255, 256, 257, 1000}) {
    for (uint32_t seed = 0; seed < 4; ++seed) {
      Case c{.lengths = {length, 0, length / 2, length}, .pitch = length + 3, .threshold = 0.25f};
      c.scores = ref::random_values(c.lengths.size() * static_cast<size_t>(c.pitch), seed);
      for (size_t i = 0; i < c.scores.size(); ++i) {
        if (static_cast<int32_t>(i % static_cast<size_t>(c.pitch)) >= c.lengths[i / static_cast<size_t>(c.pitch)]) {
          c.scores[i] = INFINITY;
        }
      }
      c.sinks = static_cast<int32_t>(seed) * 2;
      c.recent = static_cast<int32_t>(seed) * 3;
      if (seed % 2 == 1) c.due = {1, 1, 0, 1};
      EXPECT_EQ(counted(*backend, c), expected(c)) << length << " " << seed;
    }
  }
}

}  // namespace
}  // namespace kv
