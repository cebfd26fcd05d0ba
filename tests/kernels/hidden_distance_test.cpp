#include "kernels/hidden_distance.h"

#include <cmath>

#include "tests/support/close.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, HiddenDistance);

struct Result {
  std::vector<float> loss, gradient;
  bool operator==(const Result&) const = default;
};

enum class InPlace : uint8_t { kNo, kYes };

Result distance(Backend& backend, const std::vector<float>& student, const std::vector<float>& teacher, int64_t width,
                const std::vector<float>& weights, float scale, InPlace in_place = InPlace::kNo) {
  const int64_t tokens = static_cast<int64_t>(student.size()) / width;
  Tensor hidden = ref::upload_activations(backend, student);
  const Tensor target = ref::upload_activations(backend, teacher);
  Tensor gradient(backend, backend.activation_type(), tokens * width), loss(backend, DType::kF32, tokens), by;
  if (!weights.empty()) by = ref::upload_array(backend, weights);
  Tensor& to = in_place == InPlace::kYes ? hidden : gradient;
  backend.hidden_distance({.student = hidden.ref(),
                           .teacher = target.ref(),
                           .weights = weights.empty() ? nullptr : ref::data_of<float>(by),
                           .scale = scale,
                           .loss = ref::data_of<float>(loss),
                           .gradient = to.ref(),
                           .tokens = tokens,
                           .width = width});
  return {ref::download_array<float>(loss), ref::download_activations(to)};
}

TEST_P(HiddenDistance, IsTheMeanSquareOfEachToken) {
  KV_BACKEND_OR_SKIP(backend);
  const Result got = distance(*backend, {1, 2, 0, 4}, {0, 2, 2, 1}, 2, {}, 0.5F);
  EXPECT_EQ(got.loss, (std::vector<float>{0.5F, 6.5F}));
  EXPECT_EQ(got.gradient, (std::vector<float>{0.5F, 0, -1, 1.5F}));  // 0.5 · 2 / 2 · difference
}

TEST_P(HiddenDistance, DoesNotLookAtATokenOfWeightZero) {
  KV_BACKEND_OR_SKIP(backend);
  const Result got = distance(*backend, {1, 2, NAN, NAN}, {0, 2, 2, 1}, 2, {2, 0}, 1);
  EXPECT_EQ(got.loss, (std::vector<float>{0.5F, 0}));
  EXPECT_EQ(got.gradient, (std::vector<float>{2, 0, 0, 0}));
}

TEST_P(HiddenDistance, AgreesWithDoubleArithmeticAndItsSlope) {
  KV_BACKEND_OR_SKIP(backend);
  const double epsilon = ref::activation_epsilon(*backend);
  for (const int64_t width : {1, 15, 16, 17, 64, 257}) {
    const int64_t tokens = 67;
    const std::vector<float> student = ref::rounded(*backend, ref::random_values(tokens * width, 1));
    const std::vector<float> teacher = ref::rounded(*backend, ref::random_values(tokens * width, 2));
    const std::vector<float> weights = ref::random_values(tokens, 3);
    constexpr float kScale = 3;
    const Result got = distance(*backend, student, teacher, width, weights, kScale);
    for (int64_t t = 0; t < tokens; ++t) {
      const double factor = kScale * weights[t] / static_cast<double>(width);
      double loss = 0;
      for (int64_t i = t * width; i < (t + 1) * width; ++i) {
        const double difference = double{student[i]} - teacher[i];
        loss += difference * difference / static_cast<double>(width);
        // A square's difference over any step is its slope. A difference, a factor and their product are rounded, then
        // stored.
        const double slope = factor * (std::pow(difference + 0.5, 2) - std::pow(difference - 0.5, 2));
        const double allowed = ref::Tolerance{.roundings = 2, .magnitude = std::abs(slope)}.allowed();
        ASSERT_NEAR(got.gradient[i], slope, allowed + epsilon * std::abs(slope)) << "token " << t;
      }
      // Differences are rounded once, so their squares twice, and the sum of doubles at last.
      ref::expect_close(got.loss[t], loss, {.roundings = 2, .magnitude = loss});
    }
    EXPECT_EQ(got, distance(*backend, student, teacher, width, weights, kScale, InPlace::kYes));
  }
}

TEST_P(HiddenDistance, ThreadsDoNotChangeABit) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<float> student = ref::random_values(200 * 33, 1), teacher = ref::random_values(200 * 33, 2);
  const auto with = [&](int threads) {
    const ref::Threads limit(threads);
    return distance(*backend, student, teacher, 33, {}, 1);
  };
  EXPECT_EQ(with(1), with(2));
}

}  // namespace
}  // namespace kv
