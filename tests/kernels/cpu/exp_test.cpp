#include "kernels/cpu/exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/backends.h"

namespace kv {
namespace {

TEST(FastExp, IsWithinTwoUlpOverItsRange) {
  double worst = 0;
  for (int i = 0; i <= 1'000'000; ++i) {
    const float x = -87.29f + 175.0f * static_cast<float>(i) / 1e6f;
    const double want = std::exp(static_cast<double>(x));
    const float nearest = static_cast<float>(want);
    const double ulp = std::nextafter(nearest, std::numeric_limits<float>::infinity()) - nearest;
    worst = std::max(worst, std::abs(cpu::fast_exp(x) - want) / ulp);
  }
  EXPECT_LE(worst, 2.0);
}

TEST(FastExp, KnowsItsEdges) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu::fast_exp(0.0f), 1.0f);
  EXPECT_EQ(cpu::fast_exp(-0.0f), 1.0f);
  EXPECT_EQ(cpu::fast_exp(-infinity), 0.0f);
  EXPECT_EQ(cpu::fast_exp(-100.0f), 0.0f);
  EXPECT_TRUE(std::isnan(cpu::fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(ExpRow, SumsWhatItWrites) {
  for (const size_t count : {0, 1, 31, 32, 33, 1000}) {
    std::vector<float> x = ref::random_values(count, 1);
    const std::vector<float> before = x;
    const float sum = cpu::exp_row(x.data(), static_cast<int64_t>(count), 0.5f);
    double want = 0;
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(x[i], cpu::fast_exp(before[i] - 0.5f));
      want += x[i];
    }
    // Positive terms: at most count / 32 additions in a lane, 31 in the tail and 32 of lanes.
    EXPECT_LE(std::abs(sum - want), (static_cast<double>(count) / 32 + 63) * 6e-8 * want);
  }
}

}  // namespace
}  // namespace kv
