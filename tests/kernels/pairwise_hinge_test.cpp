#include "kernels/pairwise_hinge.h"

#include <cmath>

#include "tests/ref/pairwise_hinge.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, PairwiseHinge);

struct Rated {
  std::vector<float> gradient, loss;
  std::vector<int32_t> pairs;
};

// Rows of `pitch`; the newest `drop` slots of each are NaN, which must not matter.
Rated rate(Backend& backend, const std::vector<float>& targets, const std::vector<float>& scores,
           const std::vector<int32_t>& lengths, int64_t pitch, int drop = 0, const std::vector<uint8_t>& due = {}) {
  const auto rows = std::ssize(lengths);
  const Tensor device_targets = ref::upload_array(backend, targets), device_scores = ref::upload_array(backend, scores);
  Tensor device_lengths = ref::upload_array(backend, lengths), device_due, gradient(backend, DType::kF32, rows * pitch);
  if (!due.empty()) device_due = ref::upload_array(backend, due);
  Tensor loss(backend, DType::kF32, rows), pairs(backend, DType::kI32, rows);
  backend.pairwise_hinge({.targets = device_targets.slots<float>(pitch),
                          .scores = device_scores.slots<float>(pitch),
                          .lengths = ref::data_of<int32_t>(device_lengths),
                          .rows_due = due.empty() ? nullptr : ref::data_of<uint8_t>(device_due),
                          .rows = rows,
                          .drop_newest = drop,
                          .gradient = gradient.slots<float>(pitch),
                          .loss = ref::data_of<float>(loss),
                          .pairs = ref::data_of<int32_t>(pairs)});
  return {ref::download_array<float>(gradient), ref::download_array<float>(loss), ref::download_array<int32_t>(pairs)};
}

// The pairs that targets 3 > 2 > 1 make are ahead by 0.5, -0.25 and 0.25: with the margin of 0.01 the second costs 0.26
// and pulls at both of its ends.
TEST_P(PairwiseHinge, CountsWhatIsOutOfOrder) {
  KV_BACKEND_OR_SKIP(backend);
  const Rated got = rate(*backend, {3, 2, 1}, {1, 0.5F, 0.75F}, {3}, 3);
  EXPECT_EQ(got.pairs, (std::vector<int32_t>{3}));
  ref::expect_close(got.loss[0], 0.26 / 3, {.roundings = 3});
  ref::expect_close(got.gradient, std::vector<double>{0, -1.0 / 3, 1.0 / 3}, {});
}

TEST_P(PairwiseHinge, AtTheMarginCostsNothing) {
  KV_BACKEND_OR_SKIP(backend);
  const Rated got = rate(*backend, {1, 0}, {0.01F, 0}, {2}, 2);
  EXPECT_EQ(got.loss, std::vector<float>{0});
  EXPECT_EQ(got.gradient, (std::vector<float>{0, 0}));
}

TEST_P(PairwiseHinge, OfEqualTargetsHasNoPairs) {
  KV_BACKEND_OR_SKIP(backend);
  const Rated got = rate(*backend, {5, 5, 5}, {1, 2, 3}, {3}, 3);
  EXPECT_EQ(got.pairs, std::vector<int32_t>{0});
  EXPECT_EQ(got.loss, std::vector<float>{0});
  EXPECT_EQ(got.gradient, (std::vector<float>{0, 0, 0}));
}

TEST_P(PairwiseHinge, AgreesWithPairByPairAndSkipsRowsNotDue) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<int32_t> lengths = {0, 3, 4, 5, 258, 259, 260, 1003, 40};
  const std::vector<uint8_t> due = {1, 1, 1, 1, 1, 1, 1, 1, 0};
  const int drop = 3;
  const int64_t pitch = 1008, rows = std::ssize(lengths);
  std::vector<float> targets = ref::random_values(rows * pitch, 1), scores = ref::random_values(rows * pitch, 2);
  for (float& t : targets) t = std::round(t * 40);      // ties
  for (float& s : scores) s = std::round(s * 64) / 64;  // and equal scores, of which some lie near the margin
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = std::max(0, lengths[row] - drop); j < pitch; ++j) {
      targets[row * pitch + j] = scores[row * pitch + j] = NAN;
    }
  }
  const Rated got = rate(*backend, targets, scores, lengths, pitch, drop, due);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t count = due[row] ? std::max(0, lengths[row] - drop) : 0;
    if (due[row]) {
      const ref::PairwiseHinge want =
          ref::pairwise_hinge(ref::slice(targets, row * pitch, count), ref::slice(scores, row * pitch, count), 0.01F);
      EXPECT_EQ(got.pairs[row], want.pairs);
      // Sums in double, rounded once.
      ref::expect_close(got.loss[row], want.loss, {.roundings = 1.01, .magnitude = want.loss});
      ref::expect_close(ref::slice(got.gradient, row * pitch, count), want.gradient, {.roundings = 1});
    } else {
      ref::expect_untouched(got.loss, row, row + 1);
    }
    ref::expect_untouched(got.gradient, row * pitch + count, (row + 1) * pitch);
  }
}

TEST_P(PairwiseHinge, GradientIsTheSlopeOfTheLoss) {
  KV_BACKEND_OR_SKIP(backend);
  // Quarters apart, so that a step of 1/16 crosses no margin and the loss is linear in between.
  const std::vector<float> targets = {2, 7, 1, 8, 2, 8}, scores = {0.25F, 0.5F, 1, 0.75F, -0.25F, -1};
  const Rated at = rate(*backend, targets, scores, {6}, 6);
  for (size_t i = 0; i < scores.size(); ++i) {
    std::vector<float> ahead = scores, behind = scores;
    ahead[i] += 0.0625F;
    behind[i] -= 0.0625F;
    const double slope =
        (double{rate(*backend, targets, ahead, {6}, 6).loss[0]} - rate(*backend, targets, behind, {6}, 6).loss[0]) /
        0.125;
    // Two losses below 1, each rounded once, over a step of an eighth.
    ref::expect_close(at.gradient[i], slope, {.roundings = 16});
  }
}

TEST_P(PairwiseHinge, OfARowThatIsNotFiniteIsNaN) {
  KV_BACKEND_OR_SKIP(backend);
  const Rated got = rate(*backend, {1, 2, 3, 1, 2, 3}, {0, NAN, 1, 0, 0, 0}, {3, 3}, 3);
  EXPECT_TRUE(std::isnan(got.loss[0]));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(got.gradient[i]));
  EXPECT_GT(got.loss[1], 0);  // its neighbour is not touched
}

}  // namespace
}  // namespace kv
