#include "kernels/capacity_hinge.h"

#include <cmath>

#include "kernels/occupancy.h"
#include "tests/ref/capacity_hinge.h"
#include "tests/ref/occupancy.h"
#include "tests/support/close.h"
#include "tests/support/threads.h"
#include "tests/support/token_block.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, CapacityHinge);

struct Options {
  int64_t pooled = 1;
  int64_t capacity = 0;
  int64_t mean_over = 0;
  float weight = 1;
};

struct Result {
  std::vector<float> loss, gradient;
  std::vector<int32_t> overfull;
  bool operator==(const Result&) const = default;
};

enum class InPlace : uint8_t { kNo, kYes };

Result hinge(Backend& backend, const ref::TokenBlock& block, const std::vector<float>& occupancy,
             const Options& options, InPlace in_place = InPlace::kNo) {
  const ref::UploadedBlock uploaded(backend, block);
  Tensor sums = ref::upload_array(backend, occupancy), gradient(backend, DType::kF32, block.elements());
  Tensor loss(backend, DType::kF32, 1), overfull(backend, DType::kI32, 1);
  Tensor& to = in_place == InPlace::kYes ? sums : gradient;
  backend.capacity_hinge({.shape = uploaded.shape(),
                          .occupancy = ref::data_of<float>(sums),
                          .pooled = options.pooled,
                          .capacity = options.capacity,
                          .mean_over = options.mean_over,
                          .weight = options.weight,
                          .loss = ref::data_of<float>(loss),
                          .overfull = ref::data_of<int32_t>(overfull),
                          .gradient = ref::data_of<float>(to)});
  return {ref::download_array<float>(loss), ref::download_array<float>(to), ref::download_array<int32_t>(overfull)};
}

ref::TokenBlock sequence_of(int count, int heads = 1) {
  return {.segments = {{.count = count}}, .tokens = count, .heads = heads};
}

TEST_P(CapacityHinge, IsWhatLiesAboveTheCapacity) {
  KV_BACKEND_OR_SKIP(backend);
  // M = 2 at t = 0 … 3: what lies above is 0, 0 (2 is not above 2), 1.5 and 2.
  const std::vector<float> occupancy = {1, 2, 3.5F, 4};
  // Against max(1, t − 2) = 1 and 1, of two that are overfull.
  const Result got = hinge(*backend, sequence_of(4), occupancy, {.capacity = 2});
  EXPECT_EQ(got.overfull, std::vector<int32_t>{2});
  EXPECT_EQ(got.loss, std::vector<float>{1.75F});
  EXPECT_EQ(got.gradient, (std::vector<float>{0, 0, 0.5F, 0.5F}));
}

TEST_P(CapacityHinge, OfPooledHeadsHoldsTheirSumAgainstAllOfTheirCapacity) {
  KV_BACKEND_OR_SKIP(backend);
  // Four heads of M = 1 each: 10 entries at t = 4 are 6 above, against 4 · (4 − 1) = 12.
  const Result got = hinge(*backend, sequence_of(5), {1, 4, 3, 4, 10}, {.pooled = 4, .capacity = 1, .weight = 3});
  EXPECT_EQ(got.loss, std::vector<float>{0.5F});
  EXPECT_EQ(got.gradient, (std::vector<float>{0, 0, 0, 0, 0.25F}));  // 3 / 12
}

// Two sequences, one of which is overfull at one place by 1, the other at three: a mean over four.
TEST_P(CapacityHinge, OfSeveralCallsIsAMeanOverAllTheirOverfullPlaces) {
  KV_BACKEND_OR_SKIP(backend);
  const Options options{.capacity = 2, .mean_over = 4};
  const Result first = hinge(*backend, sequence_of(4), {1, 2, 2, 3}, options);
  const Result second = hinge(*backend, sequence_of(4), {1, 3, 3.5F, 4}, options);
  EXPECT_EQ(first.overfull[0] + second.overfull[0], 4);
  EXPECT_EQ(first.loss, std::vector<float>{0.25F});
  EXPECT_EQ(second.loss, std::vector<float>{1.125F});  // 1 + 1.5 + 2
  EXPECT_EQ(first.gradient, (std::vector<float>{0, 0, 0, 0.25F}));
  EXPECT_EQ(second.gradient, (std::vector<float>{0, 0.25F, 0.25F, 0.25F}));
}

TEST_P(CapacityHinge, WithoutExcessIsZero) {
  KV_BACKEND_OR_SKIP(backend);
  const Result got = hinge(*backend, sequence_of(2, 2), {1, 2, 2, 0}, {.capacity = 2});
  EXPECT_EQ(got.loss, std::vector<float>{0});
  EXPECT_EQ(got.overfull, std::vector<int32_t>{0});
  EXPECT_EQ(got.gradient, (std::vector<float>{0, 0, 0, 0}));
}

TEST_P(CapacityHinge, OfANumberThatIsNoneIsNone) {
  KV_BACKEND_OR_SKIP(backend);
  const Result got = hinge(*backend, sequence_of(3), {1, NAN, 1}, {.capacity = 2});
  EXPECT_TRUE(std::isnan(got.loss[0]));
}

// Up to twice the capacity of 40.
std::vector<float> occupancies_of(const ref::TokenBlock& block) {
  std::vector<float> occupancy = ref::random_values(block.elements(), 1);
  for (float& s : occupancy) s = 40 + 40 * s;
  return occupancy;
}

std::vector<int64_t> positions_of(const ref::TokenBlock& block) {
  std::vector<int64_t> positions(block.elements());
  block.for_places([&](size_t place, const Segment&, int64_t t) { positions[place] = t; });
  return positions;
}

TEST_P(CapacityHinge, AgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr float kWeight = 0.5F;
  for (const ref::TokenBlock& block : ref::token_blocks()) {
    const std::vector<float> occupancy = occupancies_of(block);
    for (const int64_t pooled : {1, 4}) {
      const Options options{.pooled = pooled, .capacity = 40 / pooled, .weight = kWeight};
      const Result got = hinge(*backend, block, occupancy, options);
      const ref::CapacityHinge want = ref::capacity_hinge({occupancy.begin(), occupancy.end()}, positions_of(block),
                                                          {.pooled = pooled, .capacity = options.capacity});
      EXPECT_EQ(got.overfull[0], want.overfull);
      // All in double, rounded once.
      ref::expect_close(got.loss[0], want.loss, {.roundings = 1, .magnitude = want.loss});
      for (int64_t i = 0; i < block.elements(); ++i) {
        ASSERT_TRUE(ref::is_close(got.gradient[i], kWeight * want.gradient[i], {.magnitude = want.gradient[i]}));
      }
      EXPECT_EQ(got, hinge(*backend, block, occupancy, options, InPlace::kYes));
    }
  }
}

TEST_P(CapacityHinge, AndOccupancyPullAtLogBetaAsTheReferenceSlopes) {
  KV_BACKEND_OR_SKIP(backend);
  // Global: two heads of 120 tokens share 2 · 10 entries, and forget at rates from 1e-3 to 1.
  const ref::TokenBlock block = sequence_of(120, 2);
  const ref::UploadedBlock uploaded(*backend, block);
  std::vector<float> rates = ref::random_values(240, 4);
  for (float& rate : rates) rate = -std::pow(10.0F, 1.5F * rate - 1.5F);
  Tensor log_beta = ref::upload_array(*backend, rates);
  Tensor sums(*backend, DType::kF32, 120), gradient(*backend, DType::kF32, 240);
  Tensor loss(*backend, DType::kF32, 1), overfull(*backend, DType::kI32, 1);
  sums.fill_zero();
  gradient.fill_zero();
  backend->occupancy({.shape = uploaded.shape(),
                      .log_beta = ref::data_of<float>(log_beta),
                      .of = OccupancyOf::kAllHeads,
                      .occupancy = ref::data_of<float>(sums)});
  TokenHeads pooled = uploaded.shape();
  pooled.heads = 1;
  backend->capacity_hinge({.shape = pooled,
                           .occupancy = ref::data_of<float>(sums),
                           .pooled = 2,
                           .capacity = 10,
                           .loss = ref::data_of<float>(loss),
                           .overfull = ref::data_of<int32_t>(overfull),
                           .gradient = ref::data_of<float>(sums)});
  backend->occupancy_backward({.shape = uploaded.shape(),
                               .log_beta = ref::data_of<float>(log_beta),
                               .of = OccupancyOf::kAllHeads,
                               .slopes = ref::data_of<float>(sums),
                               .gradient = ref::data_of<float>(gradient)});
  const auto loss_of = [&](const std::vector<float>& all) {
    std::vector<double> together(120, 0.0);
    std::vector<int64_t> positions(120);
    for (size_t t = 0; t < 120; ++t) positions[t] = static_cast<int64_t>(t);
    for (const size_t head : {0, 1}) {
      std::vector<float> own;
      for (size_t t = 0; t < 120; ++t) own.push_back(all[2 * t + head]);
      const std::vector<double> of_head = ref::occupancy(own).values;
      for (size_t t = 0; t < 120; ++t) together[t] += of_head[t];
    }
    return ref::capacity_hinge(together, positions, {.pooled = 2, .capacity = 10});
  };
  const ref::CapacityHinge at = loss_of(rates);
  ASSERT_GT(at.overfull, 20);
  ASSERT_LT(at.overfull, 110);
  ASSERT_EQ(ref::download_array<int32_t>(overfull)[0], at.overfull);
  const std::vector<float> got = ref::download_array<float>(gradient);
  for (const size_t i : {0, 1, 10, 101, 130, 200, 239}) {
    std::vector<float> ahead = rates, behind = rates;
    ahead[i] += 0x1p-16F;
    behind[i] -= 0x1p-16F;
    const ref::CapacityHinge above = loss_of(ahead), below = loss_of(behind);
    ASSERT_EQ(above.overfull, at.overfull);  // no place crosses its capacity, where the loss has a corner
    ASSERT_EQ(below.overfull, at.overfull);
    const double slope = (above.loss - below.loss) / (double{ahead[i]} - behind[i]);
    // A sum of up to 64 terms a block of two, of 8 roundings each; the step, at ages of up to 120, is off by 5 of them.
    ref::expect_close(got[i], slope, {.roundings = 64 + 2 + 8 + 5, .magnitude = 1 + std::abs(slope)});
  }
}

TEST_P(CapacityHinge, ThreadsDoNotChangeABit) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::TokenBlock block = ref::token_blocks()[3];
  const auto with = [&](int threads) {
    const ref::Threads limit(threads);
    return hinge(*backend, block, occupancies_of(block), {.capacity = 40});
  };
  EXPECT_EQ(with(1), with(2));
}

}  // namespace
}  // namespace kv
