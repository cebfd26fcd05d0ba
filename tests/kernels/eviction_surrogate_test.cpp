#include "kernels/eviction_surrogate.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/ref/eviction_surrogate.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, EvictionSurrogate);

// Rows of `pitch`.
struct Rows {
  std::vector<int32_t> lengths;
  int64_t pitch = 0;
  int kv_heads = 1;
  std::vector<float> scores, old_scores, reference_scores, order;
  std::vector<uint8_t> keep;
  std::vector<uint8_t> stays = {};  // none: null
  std::vector<float> advantages;
  DrawLaw law = DrawLaw::kMarginal;
  float clip = 0.2F;
  float kl_weight = 0.05F;
  std::vector<uint8_t> due = {};  // none: null
  int drop = 0;

  int64_t rows() const { return std::ssize(lengths); }
  bool is_due(int64_t row) const { return due.empty() || due[row]; }
  int64_t count(int64_t row) const { return std::max(0, lengths[row] - drop); }
};

struct Rated {
  std::vector<float> loss, kl, clipped, gradient;
};

Rated rate(Backend& backend, const Rows& rows) {
  const ref::PagedCache cache(backend, ref::random_rows(rows.lengths, rows.kv_heads, 4, 1));
  const Tensor scores = ref::upload_array(backend, rows.scores);
  const Tensor old_scores = ref::upload_array(backend, rows.old_scores);
  const Tensor reference = ref::upload_array(backend, rows.reference_scores);
  const Tensor order = ref::upload_array(backend, rows.order), keep = ref::upload_array(backend, rows.keep);
  const Tensor stays = ref::upload_array(backend, rows.stays);
  Tensor advantages = ref::upload_array(backend, rows.advantages), due = ref::upload_array(backend, rows.due);
  Tensor loss(backend, DType::kF32, rows.rows()), kl(backend, DType::kF32, rows.rows());
  Tensor clipped(backend, DType::kF32, rows.rows()), gradient(backend, DType::kF32, rows.rows() * rows.pitch);
  // What a law does not read is not there.
  const bool ordered = rows.law == DrawLaw::kPlackettLuce;
  backend.eviction_surrogate(
      {.cache = cache.view(),
       .scores = scores.slots<float>(rows.pitch),
       .old_scores = old_scores.slots<float>(rows.pitch),
       .reference_scores = reference.slots<float>(rows.pitch),
       .keep = keep.slots<uint8_t>(rows.pitch),
       .law = rows.law,
       .order = ordered ? order.slots<float>(rows.pitch) : Slots<const float>{},
       .stays = ordered && !rows.stays.empty() ? stays.slots<uint8_t>(rows.pitch) : Slots<const uint8_t>{},
       .advantages = ref::data_of<float>(advantages),
       .clip = rows.clip,
       .kl_weight = rows.kl_weight,
       .rows_due = rows.due.empty() ? nullptr : ref::data_of<uint8_t>(due),
       .drop_newest = rows.drop,
       .loss = ref::data_of<float>(loss),
       .kl = ref::data_of<float>(kl),
       .clipped = ref::data_of<float>(clipped),
       .gradient = gradient.slots<float>(rows.pitch)});
  return {ref::download_array<float>(loss), ref::download_array<float>(kl), ref::download_array<float>(clipped),
          ref::download_array<float>(gradient)};
}

ref::DrawnRow drawn_row(const Rows& rows, int64_t row) {
  const int64_t first = row * rows.pitch, count = rows.count(row);
  const auto doubles = [&](const std::vector<float>& all) {
    return std::vector<double>(all.begin() + first, all.begin() + first + count);
  };
  ref::DrawnRow result{.scores = doubles(rows.scores),
                       .old_scores = doubles(rows.old_scores),
                       .reference_scores = doubles(rows.reference_scores),
                       .advantage = rows.advantages[row / rows.kv_heads],
                       .clip = rows.clip,
                       .kl_weight = rows.kl_weight};
  for (int64_t slot = 0; slot < count; ++slot) {
    if (!rows.keep[first + slot]) result.drawn.push_back(slot);
  }
  if (rows.law == DrawLaw::kMarginal) return result;
  std::stable_sort(result.drawn.begin(), result.drawn.end(),
                   [&](int64_t a, int64_t b) { return rows.order[first + a] < rows.order[first + b]; });
  result.candidates.assign(count, 1);
  for (int64_t slot = 0; slot < count && !rows.stays.empty(); ++slot) {
    result.candidates[slot] = !rows.stays[first + slot];
  }
  return result;
}

// Random rows: old and reference scores are `apart` from the new ones, `dropped` of all candidates are dropped. What
// lies beyond the counted slots of a row is NaN, and kept.
Rows random_rows(const std::vector<int32_t>& lengths, int64_t pitch, DrawLaw law, float apart, double dropped) {
  Rows rows{.lengths = lengths, .pitch = pitch, .law = law, .drop = 3};
  const size_t size = lengths.size() * pitch;
  rows.scores = ref::random_values(size, 1);
  rows.old_scores = ref::random_values(size, 2);
  rows.reference_scores = ref::random_values(size, 3);
  rows.order = ref::random_values(size, 4);
  rows.advantages = ref::random_values(lengths.size(), 5);
  const std::vector<float> fates = ref::random_values(size, 6);
  for (size_t at = 0; at < size; ++at) {
    rows.scores[at] *= 3;
    rows.old_scores[at] = rows.scores[at] + apart * rows.old_scores[at];
    rows.reference_scores[at] = rows.scores[at] + apart * rows.reference_scores[at];
    rows.order[at] = std::round(rows.order[at] * 50) / 50;  // ties
    rows.stays.push_back(fates[at] > 0.8F);
    rows.keep.push_back((rows.stays.back() && law == DrawLaw::kPlackettLuce) || fates[at] > 2 * dropped - 1);
    const int64_t row = static_cast<int64_t>(at) / pitch;
    if (static_cast<int64_t>(at) % pitch < rows.count(row)) continue;
    rows.scores[at] = rows.old_scores[at] = rows.reference_scores[at] = rows.order[at] = NAN;
    rows.keep[at] = 1;
  }
  return rows;
}

void expect_reference(const Rows& rows, const Rated& got) {
  for (int64_t row = 0; row < rows.rows(); ++row) {
    SCOPED_TRACE("row " + std::to_string(row));
    const int64_t first = row * rows.pitch, count = rows.is_due(row) ? rows.count(row) : 0;
    if (rows.is_due(row)) {
      const ref::EvictionSurrogate want = ref::eviction_surrogate(drawn_row(rows, row));
      // Sums in double, rounded once; those of many terms lose some of a double's last bits where terms cancel.
      constexpr double kBits = 1e-11;
      const auto expect = [&](double value, double target) {
        ref::expect_close(value, target, {.magnitude = std::abs(target) * 6e-8 + kBits, .epsilon = 1});
      };
      expect(got.loss[row], want.loss);
      expect(got.kl[row], want.kl);
      expect(got.clipped[row], want.clipped);
      for (int64_t slot = 0; slot < count; ++slot) expect(got.gradient[first + slot], want.gradient[slot]);
    } else {
      for (const auto* numbers : {&got.loss, &got.kl, &got.clipped}) ref::expect_untouched(*numbers, row, row + 1);
    }
    ref::expect_untouched(got.gradient, first + count, first + rows.pitch);
  }
}

constexpr DrawLaw kLaws[] = {DrawLaw::kMarginal, DrawLaw::kPlackettLuce};

// Lengths around the tile of 256 that a block of the GPU takes at a time, of all slots and of the drawn ones.
TEST_P(EvictionSurrogate, AgreesWithDrawByDrawAndSkipsRowsNotDue) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<int32_t> lengths = {0, 3, 4, 5, 258, 259, 260, 1003, 40, 700, 19, 520};
  for (const DrawLaw law : kLaws) {
    for (const double dropped : {0.1, 0.5, 0.95}) {
      Rows rows = random_rows(lengths, 1008, law, 0.5F, dropped);
      rows.kv_heads = 2;
      rows.advantages.resize(6);
      rows.due = {1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 1};
      expect_reference(rows, rate(*backend, rows));
      rows.stays.clear();
      rows.due.clear();
      expect_reference(rows, rate(*backend, rows));
    }
  }
}

// Probabilities that are no numbers any more, and ratios far beyond what is let through.
TEST_P(EvictionSurrogate, OfScoresFarApartIsStillExact) {
  KV_BACKEND_OR_SKIP(backend);
  for (const DrawLaw law : kLaws) {
    Rows rows = random_rows({33, 34, 300, 301}, 301, law, 5, 0.4);
    for (size_t at = 0; at < rows.scores.size(); ++at) {
      const float far = at % 7 == 0 ? 900.0F : at % 5 == 0 ? -900.0F : 0.0F;
      rows.scores[at] += far;
      rows.old_scores[at] += far;
      rows.reference_scores[at] += far;
    }
    rows.kl_weight = 0;
    expect_reference(rows, rate(*backend, rows));
  }
}

TEST_P(EvictionSurrogate, SortsAsManyDrawsAsThereMayBe) {
  KV_BACKEND_OR_SKIP(backend);
  Rows rows = random_rows({kMostDrawn + 3}, kMostDrawn + 8, DrawLaw::kPlackettLuce, 0.5F, 1);
  rows.stays.clear();
  std::fill_n(rows.keep.begin(), kMostDrawn, uint8_t{0});
  expect_reference(rows, rate(*backend, rows));
}

// Of kPlackettLuce the one of two candidates that goes first has a probability, the other one is certain.
TEST_P(EvictionSurrogate, OfTwoDrawsOnlyTheFirstIsAChoice) {
  KV_BACKEND_OR_SKIP(backend);
  const Rated got = rate(*backend, {.lengths = {3},
                                    .pitch = 3,
                                    .scores = {0, 0, 9},
                                    .old_scores = {0, 0, 9},
                                    .reference_scores = {0, 0, 9},
                                    .order = {2, 1, 0},
                                    .keep = {0, 0, 1},
                                    .stays = {0, 0, 1},
                                    .advantages = {1},
                                    .law = DrawLaw::kPlackettLuce});
  EXPECT_EQ(got.loss, std::vector<float>{-1});
  EXPECT_EQ(got.kl, std::vector<float>{0});
  EXPECT_EQ(got.clipped, std::vector<float>{0});
  // Slot 1 went first, by chance 1/2, and was worth it: its score falls, the other's rises.
  ref::expect_close(got.gradient, std::vector<double>{-0.25, 0.25, 0}, {});
}

// φ moves from 0 to `ahead` in one of two slots; l changes by less than that.
Rows one_of_two(float ahead, float advantage) {
  return {.lengths = {2},
          .pitch = 2,
          .scores = {-ahead, 0},
          .old_scores = {0, 0},
          .reference_scores = {0, 0},
          .order = {0, 0},
          .keep = {0, 1},
          .advantages = {advantage},
          .kl_weight = 0};
}

TEST_P(EvictionSurrogate, IsClippedWhereItWouldGainMore) {
  KV_BACKEND_OR_SKIP(backend);
  for (const DrawLaw law : kLaws) {
    for (const auto& [ahead, advantage, clipped] :
         {std::tuple{2.0F, 3.0F, 1.0F}, {2.0F, -3.0F, 0.0F}, {-2.0F, 3.0F, 0.0F}, {-2.0F, -3.0F, 1.0F}}) {
      Rows rows = one_of_two(ahead, advantage);
      rows.law = law;
      const Rated got = rate(*backend, rows);
      EXPECT_EQ(got.clipped[0], clipped);
      EXPECT_EQ(got.gradient[0] == 0, clipped == 1);
      EXPECT_EQ(got.gradient[0], -got.gradient[1]);
      expect_reference(rows, got);
    }
  }
}

// Beyond 10 the ratio's logarithm stays 10, and nothing is learned from it.
TEST_P(EvictionSurrogate, OfALogRatioBeyondItsBoundsHasNoGradient) {
  KV_BACKEND_OR_SKIP(backend);
  for (const DrawLaw law : kLaws) {
    for (const float sign : {-1.0F, 1.0F}) {
      Rows rows = one_of_two(0, -sign);
      rows.law = law;
      (sign > 0 ? rows.old_scores : rows.scores)[0] = 30;
      const Rated got = rate(*backend, rows);
      const double ratio = std::exp(sign * 10.0);  // which the advantage does not let the clip hold
      ref::expect_close(got.loss[0], sign * ratio, {.magnitude = ratio});
      EXPECT_EQ(got.gradient, (std::vector<float>{0, 0}));
    }
  }
}

TEST_P(EvictionSurrogate, OfNothingDroppedIsNothing) {
  KV_BACKEND_OR_SKIP(backend);
  for (const DrawLaw law : kLaws) {
    Rows rows = random_rows({8, 3, 2}, 8, law, 0.5F, 0.5);
    std::ranges::fill(rows.keep, uint8_t{1});
    const Rated got = rate(*backend, rows);
    for (const auto* numbers : {&got.loss, &got.kl, &got.clipped}) EXPECT_EQ(*numbers, std::vector<float>(3));
    EXPECT_EQ(ref::slice(got.gradient, 0, 5), std::vector<float>(5));
    expect_reference(rows, got);
  }
}

TEST_P(EvictionSurrogate, OfTheOnlyCandidateIsCertain) {
  KV_BACKEND_OR_SKIP(backend);
  for (const DrawLaw law : kLaws) {
    const Rows rows{.lengths = {1},
                    .pitch = 1,
                    .scores = {3},
                    .old_scores = {-2},
                    .reference_scores = {70},
                    .order = {0},
                    .keep = {0},
                    .advantages = {0.5F},
                    .law = law};
    const Rated got = rate(*backend, rows);
    EXPECT_EQ(got.loss, std::vector<float>{-0.5F});
    EXPECT_EQ(got.kl, std::vector<float>{0});
    EXPECT_EQ(got.gradient, std::vector<float>{0});
  }
}

TEST_P(EvictionSurrogate, OfARowThatIsNotFiniteIsNaN) {
  KV_BACKEND_OR_SKIP(backend);
  const Rows fine = {.lengths = {3, 3},
                     .pitch = 3,
                     .scores = {1, 2, 3, 1, 2, 3},
                     .old_scores = {1, 2, 3, 1, 2, 3},
                     .reference_scores = {1, 2, 3, 1, 2, 4},
                     .order = {1, 2, 3, 1, 2, 3},
                     .keep = {0, 1, 1, 0, 1, 0},
                     .advantages = {1, 1},
                     .law = DrawLaw::kPlackettLuce};
  for (int bad = 0; bad < 5; ++bad) {
    Rows rows = fine;
    if (bad == 0) rows.scores[1] = NAN;
    if (bad == 1) rows.old_scores[2] = INFINITY;
    if (bad == 2) rows.reference_scores[0] = NAN;
    if (bad == 3) rows.order[0] = NAN;
    if (bad == 4) rows.advantages[0] = NAN;
    const Rated got = rate(*backend, rows);
    for (const auto* numbers : {&got.loss, &got.kl, &got.clipped}) {
      EXPECT_TRUE(std::isnan((*numbers)[0]));
      EXPECT_TRUE(std::isfinite((*numbers)[1]));  // its neighbour is not touched
    }
    for (int slot = 0; slot < 3; ++slot) EXPECT_TRUE(std::isnan(got.gradient[slot]));
    for (int slot = 3; slot < 6; ++slot) EXPECT_TRUE(std::isfinite(got.gradient[slot]));
  }
  Rows kept = fine;
  kept.order[1] = NAN;  // of a slot that was not dropped
  EXPECT_TRUE(std::isfinite(rate(*backend, kept).loss[0]));
}

// The reference, whose loss and gradient are written apart, is held to itself.
TEST(EvictionSurrogateReference, GradientIsTheSlopeOfTheLoss) {
  for (const DrawLaw law : kLaws) {
    const Rows rows = random_rows({23, 30}, 40, law, 0.3F, 0.4);
    for (int64_t row = 0; row < rows.rows(); ++row) {
      const ref::DrawnRow at = drawn_row(rows, row);
      const ref::EvictionSurrogate rated = ref::eviction_surrogate(at);
      for (size_t slot = 0; slot < at.scores.size(); ++slot) {
        constexpr double kStep = 1e-6;
        ref::DrawnRow ahead = at, behind = at;
        ahead.scores[slot] += kStep;
        behind.scores[slot] -= kStep;
        const double slope = (ref::eviction_surrogate(ahead).loss - ref::eviction_surrogate(behind).loss) / (2 * kStep);
        // Losses of about 1, to 16 digits, over a step of 2e-6.
        ref::expect_close(rated.gradient[slot], slope, {.epsilon = 1e-9});
      }
    }
  }
}

TEST(EvictionSurrogateOnCpu, HasTheSameBitsWithAnyNumberOfThreads) {
  const auto backend = ref::try_backend("cpu");
  for (const DrawLaw law : kLaws) {
    const Rows rows = random_rows({100, 300, 3, 77, 200, 150, 90, 260}, 304, law, 0.5F, 0.5);
    const auto with = [&](int threads) {
      const ref::Threads set(threads);
      return rate(*backend, rows);
    };
    const Rated one = with(1), five = with(5);
    EXPECT_EQ(one.loss, five.loss);
    EXPECT_EQ(one.kl, five.kl);
    EXPECT_EQ(one.clipped, five.clipped);
    EXPECT_EQ(std::memcmp(one.gradient.data(), five.gradient.data(), one.gradient.size() * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace kv
