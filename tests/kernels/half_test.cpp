#include "kernels/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kv {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The value of a 16-bit pattern from the definition: sign, exponent and mantissa, in double.
double value_of(int bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = bits & ((1 << mantissa_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

template <class Widen, class Narrow>
void check_all_patterns(int exponent_bits, Widen widen, Narrow narrow) {
  const int infinity = ((1 << exponent_bits) - 1) << (15 - exponent_bits);
  for (int bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7fff) > infinity) {
      ASSERT_TRUE(std::isnan(widen(static_cast<uint16_t>(bits)))) << bits;
      ASSERT_GT(narrow(widen(static_cast<uint16_t>(bits))) & 0x7fff, infinity) << bits;
      continue;
    }
    const float wide = widen(static_cast<uint16_t>(bits));
    if ((bits & 0x7fff) < infinity) {
      ASSERT_EQ(double(wide), value_of(bits, exponent_bits)) << bits;
    }
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(narrow(wide), bits);
  }
}

// Between two neighbours the midpoint goes to the even pattern, and the floats beside it to the nearer one.
template <class Narrow>
void check_rounding(int exponent_bits, Narrow narrow) {
  const int infinity = ((1 << exponent_bits) - 1) << (15 - exponent_bits);
  for (int bits = 0; bits + 1 < infinity; ++bits) {
    const auto middle = static_cast<float>((value_of(bits, exponent_bits) + value_of(bits + 1, exponent_bits)) / 2);
    ASSERT_EQ(narrow(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(narrow(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(narrow(std::nextafter(middle, kInfinity)), bits + 1);
    ASSERT_EQ(narrow(-middle), 0x8000 | (bits % 2 == 0 ? bits : bits + 1)) << bits;
  }
}

TEST(Bf16, EveryPatternWidensExactlyAndReturns) { check_all_patterns(8, bf16_to_f32, f32_to_bf16); }
TEST(Bf16, RoundsToNearestTiesToEven) { check_rounding(8, f32_to_bf16); }
TEST(F16, EveryPatternWidensExactlyAndReturns) { check_all_patterns(5, f16_to_f32, f32_to_f16); }
TEST(F16, RoundsToNearestTiesToEven) { check_rounding(5, f32_to_f16); }

TEST(F16, OverflowsToInfinityFromTheMidpointPastItsLargestValue) {
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(f32_to_f16(kInfinity), 0x7c00);
  EXPECT_EQ(f32_to_f16(1e-30f), 0);
}

TEST(Bf16, OverflowsToInfinityAndKeepsNaN) {
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(kInfinity), 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(kNaN))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7fffffffu)))));
}

}  // namespace
}  // namespace kv
