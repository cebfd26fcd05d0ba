#include "kernels/draw_order.h"

#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "kernels/random_uniform.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, DrawOrder);

struct Draw {
  std::vector<int32_t> numbers, tokens_seen;
  uint64_t seed = 1;
  uint32_t first_head = 0;
  int drop_newest = 0;
  std::vector<uint8_t> stays = {};  // none: every slot is a candidate
  std::vector<uint8_t> due = {};    // none: all
  bool in_place = false;
};

std::vector<float> drawn(Backend& backend, const ref::PagedCache& cache, const std::vector<float>& scores,
                         int64_t pitch, const Draw& draw) {
  Tensor numbers = ref::upload_array(backend, draw.numbers), seen = ref::upload_array(backend, draw.tokens_seen);
  Tensor stays = ref::upload_array(backend, draw.stays), due = ref::upload_array(backend, draw.due);
  Tensor from = ref::upload_array(backend, scores), to(backend, DType::kF32, cache.rows().rows() * pitch);
  Tensor& output = draw.in_place ? from : to;
  backend.draw_order({.cache = cache.view(),
                      .scores = from.slots<float>(pitch),
                      .stays = draw.stays.empty() ? Slots<uint8_t>{} : stays.slots<uint8_t>(pitch),
                      .seed = draw.seed,
                      .numbers = ref::data_of<int32_t>(numbers),
                      .tokens_seen = ref::data_of<int32_t>(seen),
                      .first_head = draw.first_head,
                      .rows_due = draw.due.empty() ? nullptr : ref::data_of<uint8_t>(due),
                      .drop_newest = draw.drop_newest,
                      .output = output.slots<float>(pitch)});
  return ref::download_array<float>(output);
}

double expected(double score, uint64_t seed, const std::array<uint32_t, 4>& counter) {
  const uint64_t key = seed ^ 0x8EBC6AF09C88C6E3ull;
  const auto words = philox4x32(counter, {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  const double u = ((words[0] >> 8) + 0.5) / 16777216;
  return score + std::log(std::log(1 / u));
}

// Lengths around a page's 16 entries and a tile's 1024; names and seeds of more than 16 and 32 bits.
TEST_P(DrawOrder, AddsTheNoiseOfSampleHeadEventAndSlot) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::PagedCache cache(*backend, ref::random_rows({17, 2, 1026, 3, 1025, 2060, 16, 1027, 300}, 3, 4, 1), 1);
  const int64_t pitch = 2064, rows = 9;
  const std::vector<float> scores = ref::random_values(rows * pitch, 4);
  Draw draw{.numbers = {4, 0x12345678, 0},
            .tokens_seen = {700, 1, 500000},
            .seed = 0xFEDCBA9876543210u,
            .first_head = 35 << 16,
            .drop_newest = 2,
            .stays = std::vector<uint8_t>(rows * pitch),
            .due = {1, 1, 1, 0, 1, 1, 1, 1, 0}};
  for (size_t i = 0; i < draw.stays.size(); i += 3) draw.stays[i] = 1;
  const std::vector<float> got = drawn(*backend, cache, scores, pitch, draw);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t count = draw.due[row] ? cache.rows().length(row) - draw.drop_newest : 0;
    for (int64_t slot = 0; slot < count; ++slot) {
      const int64_t at = row * pitch + slot;
      if (draw.stays[at]) {
        ASSERT_EQ(got[at], kStays);
        continue;
      }
      const std::array<uint32_t, 4> counter = {
          static_cast<uint32_t>(draw.numbers[row / 3]), (35u << 16) + static_cast<uint32_t>(row % 3),
          static_cast<uint32_t>(draw.tokens_seen[row / 3]), static_cast<uint32_t>(slot)};
      const double want = expected(scores[at], draw.seed, counter);
      // Rounded once, but for the last bits of a double.
      ASSERT_TRUE(ref::is_close(got[at], want, {.roundings = 0.501, .magnitude = std::abs(want)}))
          << "row " << row << ", slot " << slot;
    }
    ref::expect_untouched(got, row * pitch + count, (row + 1) * pitch);
  }
}

// Alone or between others, in place or not, a sample draws the same.
TEST_P(DrawOrder, DoesNotDependOnTheBatch) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::PagedCache both(*backend, ref::random_rows({3, 5, 40, 33}, 2, 4, 1));
  const ref::PagedCache alone(*backend, ref::random_rows({40, 33}, 2, 4, 2));
  const std::vector<float> scores = ref::random_values(4 * 40, 3);
  const auto together = drawn(*backend, both, scores, 40, {.numbers = {9, 7}, .tokens_seen = {5, 50}});
  const auto single =
      drawn(*backend, alone, ref::slice(scores, 80, 80), 40, {.numbers = {7}, .tokens_seen = {50}, .in_place = true});
  EXPECT_EQ(ref::slice(together, 2 * 40, 40), ref::slice(single, 0, 40));
  EXPECT_EQ(ref::slice(together, 3 * 40, 33), ref::slice(single, 40, 33));
}

TEST_P(DrawOrder, PassesOnWhatIsNotFinite) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::PagedCache cache(*backend, ref::random_rows({5}, 1, 4, 1));
  const auto got = drawn(*backend, cache, {NAN, NAN, -INFINITY, 1, 1}, 5,
                         {.numbers = {1}, .tokens_seen = {5}, .stays = {0, 1, 1, 0, 1}});
  EXPECT_TRUE(std::isnan(got[0]) && std::isnan(got[1]));
  EXPECT_EQ(got[2], -INFINITY);
  EXPECT_LT(got[3], kStays);
  EXPECT_EQ(got[4], kStays);
}

// Whether an event of chance p came about `seen` times in `draws`, within five standard errors.
void expect_chance(double p, int64_t seen, int64_t draws) {
  const auto n = static_cast<double>(draws);
  EXPECT_NEAR(static_cast<double>(seen) / n, p, 5 * std::sqrt(p * (1 - p) / n));
}

// Three candidates beside two entries that stay, one of which would otherwise always go first.
TEST_P(DrawOrder, DrawsByPlackettAndLuce) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kSequences = 64, kHeads = 8, kRows = kSequences * kHeads, kEvents = 60, kSlots = 5;
  const ref::PagedCache cache(*backend, ref::random_rows(std::vector<int32_t>(kRows, kSlots), kHeads, 4, 1));
  const std::array<float, kSlots> scores = {0.5F, -50, -0.75F, 0, 2};
  const std::array<uint8_t, kSlots> stays = {0, 1, 0, 0, 1};
  std::vector<float> all_scores;
  Draw draw{.numbers = std::vector<int32_t>(kSequences), .seed = 5};
  std::iota(draw.numbers.begin(), draw.numbers.end(), 0);
  for (int row = 0; row < kRows; ++row) {
    all_scores.insert(all_scores.end(), scores.begin(), scores.end());
    draw.stays.insert(draw.stays.end(), stays.begin(), stays.end());
  }
  std::map<int64_t, int64_t> first;
  std::map<std::pair<int64_t, int64_t>, int64_t> pair;
  for (int event = 0; event < kEvents; ++event) {
    draw.tokens_seen.assign(kSequences, 100 * event);
    const std::vector<float> got = drawn(*backend, cache, all_scores, kSlots, draw);
    for (int64_t row = 0; row < kRows; ++row) {
      const std::vector<float> order = ref::slice(got, row * kSlots, kSlots);
      const auto lowest = [&](float above) {
        int64_t best = 1;  // which stays, above all candidates
        for (int64_t slot = 0; slot < kSlots; ++slot) {
          if (order[slot] > above && order[slot] < order[best]) best = slot;
        }
        return best;
      };
      const int64_t one = lowest(-INFINITY), other = lowest(order[one]);
      ++first[one];
      ++pair[{one, other}];
    }
  }
  const std::array<int64_t, 3> candidates = {0, 2, 3};
  const auto weight = [&](int64_t slot) { return std::exp(-double{scores[slot]}); };
  const double total = weight(0) + weight(2) + weight(3);
  for (const int64_t one : candidates) {
    const double p = weight(one) / total;
    expect_chance(p, first[one], kRows * kEvents);
    for (const int64_t other : candidates) {
      if (other != one) expect_chance(p * weight(other) / (total - weight(one)), pair[{one, other}], kRows * kEvents);
    }
  }
  EXPECT_EQ(first.size(), 3u);
  EXPECT_EQ(pair.size(), 6u);
}

TEST(DrawUniform, LiesBetweenItsEnds) {
  for (uint32_t slot = 0; slot < 10000; ++slot) {
    const double u = draw_uniform(3, 1, 2, 3, slot);
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    ASSERT_EQ(std::fmod(u * 0x1p25, 2), 1);
  }
}

TEST(DrawUniform, DependsOnEveryArgumentAndIsNotThatOfRandomScores) {
  const std::set<double> values = {draw_uniform(1, 2, 3, 4, 5), draw_uniform(2, 2, 3, 4, 5),
                                   draw_uniform(1, 3, 3, 4, 5), draw_uniform(1, 2, 4, 4, 5),
                                   draw_uniform(1, 2, 3, 5, 5), draw_uniform(1, 2, 3, 4, 6)};
  EXPECT_EQ(values.size(), 6u);
  double together = 0;
  for (uint32_t slot = 0; slot < 10000; ++slot) {
    together += (draw_uniform(1, 2, 3, 4, slot) - 0.5) * (double{hash_uniform(1, 2, 3, 4, slot)} - 0.5);
  }
  EXPECT_NEAR(together / 10000, 0, 5.0 / 12 / 100);  // five standard errors of a product of independent ones
}

}  // namespace
}  // namespace kv
