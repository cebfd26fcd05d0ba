// What threads share of an optimiser's step; its numbers are torch's (foresight_code_test.cpp).

#include "sim/learned/adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/threads.h"

namespace kv {
namespace {

// Some tasks of weights, the last of them not full.
std::vector<double> slopes() {
  std::vector<double> slopes;
  for (int i = 0; i < 50001; ++i) slopes.push_back(std::sin(0.37 * i) * std::exp(-1e-4 * i));
  return slopes;
}

TEST(AdamStep, ThreadsChangeNoBit) {
  struct Result {
    double norm = 0;
    std::vector<float> weights;
    bool operator==(const Result&) const = default;
  };
  const auto with = [](int threads) {
    const ref::Threads limit(threads);
    std::vector<double> gradient = slopes();
    Result result{.norm = norm_of(gradient), .weights = std::vector<float>(gradient.size(), 0.5F)};
    clip_norm(gradient, result.norm, 1);
    Adam adam(gradient.size(), {.decay = 0.01});
    for (int step = 0; step < 3; ++step) adam.step(result.weights, gradient, 1e-3);
    return result;
  };
  EXPECT_EQ(with(1), with(2));
}

TEST(GradientNorm, IsCutToItsBound) {
  std::vector<double> gradient = slopes();
  double square = 0;
  for (const double slope : gradient) square += slope * slope;
  const double norm = norm_of(gradient);
  EXPECT_NEAR(norm, std::sqrt(square), 1e-12 * norm);
  clip_norm(gradient, norm, 2 * norm);
  EXPECT_EQ(gradient, slopes());
  clip_norm(gradient, norm, 0.5);
  EXPECT_NEAR(norm_of(gradient), 0.5, 1e-6);
}

TEST(GradientNorm, TellsThatASlopeIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    std::vector<double> gradient = slopes();
    gradient[50000] = bad;
    EXPECT_FALSE(std::isfinite(norm_of(gradient)));
  }
}

}  // namespace
}  // namespace kv
