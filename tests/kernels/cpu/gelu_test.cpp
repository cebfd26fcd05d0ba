#include "kernels/cpu/gelu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace kv {
namespace {

// An ulp of e is 2^-23 at the worst: e has two and what it is multiplied with about three. Its argument, −a² / 2, is
// off by half an ulp or two, by which e then is, a² / 2 times.
TEST(NormalAt, IsRelativelyCloseFarBelowZeroToo) {
  double worst = 0;
  for (int i = 0; i <= 1'000'000; ++i) {
    const float a = -13.0F + 26.0F * static_cast<float>(i) / 1e6F;
    const double exact = a, below = std::erfc(-exact / std::numbers::sqrt2) / 2;
    const double density = std::exp(-exact * exact / 2) / std::sqrt(2 * std::numbers::pi);
    const cpu::Normal got = cpu::normal_at(a);
    const double allowed = (6 + exact * exact / 2) * 0x1p-23;
    worst = std::max({worst, std::abs(got.below / below - 1) / allowed, std::abs(got.density / density - 1) / allowed});
  }
  EXPECT_LE(worst, 1.0);
}

TEST(NormalAt, KnowsItsEdges) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_NEAR(cpu::normal_at(0.0F).below, 0.5, 0x1p-24);
  for (const float far : {14.0F, 1e30F, kInfinity}) {
    EXPECT_EQ(cpu::normal_at(-far).below, 0.0F);
    EXPECT_EQ(cpu::normal_at(far).below, 1.0F);
    EXPECT_EQ(cpu::normal_at(-far).density, 0.0F);
  }
  EXPECT_TRUE(std::isnan(cpu::normal_at(std::numeric_limits<float>::quiet_NaN()).below));
}

}  // namespace
}  // namespace kv
