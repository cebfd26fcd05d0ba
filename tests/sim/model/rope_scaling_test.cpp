#include "sim/model/rope_scaling.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kv {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// Ten roundings of f32 at most; YaRN's ramp between them loses no digit. (The bits are rope_parity_test.cpp's.)
void expect_same(double got, double expected) { EXPECT_LE(std::abs(got - expected), 6e-7 * std::abs(expected)); }

TEST(Rope, DefaultIsAGeometricSeries) {
  const Rope rope = make_rope({.theta = 10000.0}, 8);  // 10000^(-i/4): a factor of ten each
  ASSERT_EQ(rope.inv_freq.size(), 4u);
  for (int i = 0; i < 4; ++i) expect_same(rope.inv_freq[i], std::vector<double>{1.0, 0.1, 0.01, 0.001}[i]);
  EXPECT_EQ(rope.attention_factor, 1.0);
}

TEST(Rope, LinearDividesEveryFrequency) {
  const Rope rope = make_rope({.type = RopeType::kLinear, .theta = 10000.0, .factor = 4.0}, 8);
  for (int i = 0; i < 4; ++i) expect_same(rope.inv_freq[i], std::vector<double>{0.25, 0.025, 0.0025, 0.00025}[i]);
  EXPECT_EQ(rope.attention_factor, 1.0);
}

// theta 10000, head_dim 8: wavelengths 2 pi * {1, 10, 100, 1000} = {6.28, 62.8, 628, 6283}. With 1000 original
// positions, low 1 and high 4 the cut-offs are wavelengths 1000 and 250: two are kept, 628 is blended, 6283 is divided
// by 8.
TEST(Rope, Llama3KeepsBlendsAndDivides) {
  const Rope rope = make_rope({.type = RopeType::kLlama3,
                               .theta = 10000.0,
                               .factor = 8.0,
                               .original_max_positions = 1000,
                               .low_freq_factor = 1.0,
                               .high_freq_factor = 4.0},
                              8);
  expect_same(rope.inv_freq[0], 1.0);
  expect_same(rope.inv_freq[1], 0.1);
  const double wavelength = kTwoPi * 100.0;
  const double smooth = (1000.0 / wavelength - 1.0) / (4.0 - 1.0);  // 0.19718
  expect_same(rope.inv_freq[2], (1.0 - smooth) * 0.01 / 8.0 + smooth * 0.01);
  EXPECT_NEAR(rope.inv_freq[2], 0.0029754, 1e-7);  // 0.80282 * 0.00125 + 0.19718 * 0.01
  expect_same(rope.inv_freq[3], 0.001 / 8.0);
  EXPECT_EQ(rope.attention_factor, 1.0);
}

// theta 10000, head_dim 8: the pair that turns r times over n positions is 4 ln(n / (2 pi r)) / ln(10000).
// n = 2000: r = 32 gives 4 * 2.29835 / 9.21034 = 0.998, r = 1 gives 4 * 5.76309 / 9.21034 = 2.503.
RopeConfig yarn() { return {.type = RopeType::kYarn, .theta = 10000.0, .factor = 4.0, .original_max_positions = 2000}; }

TEST(Rope, YarnRampsBetweenWholePairs) {
  const Rope rope = make_rope(yarn(), 8);  // ramp from 0 to 3: the shares divided by 4 are 0, 1/3, 2/3, 1
  expect_same(rope.inv_freq[0], 1.0);
  expect_same(rope.inv_freq[1], 0.1 * (1.0 / 3 / 4 + 2.0 / 3));
  expect_same(rope.inv_freq[2], 0.01 * (2.0 / 3 / 4 + 1.0 / 3));
  expect_same(rope.inv_freq[3], 0.001 / 4);
  expect_same(rope.attention_factor, 1.0 + 0.1 * std::log(4.0));
}

TEST(Rope, YarnWithoutTruncationRampsBetweenFractionalPairs) {
  RopeConfig config = yarn();
  config.truncate = false;
  const Rope rope = make_rope(config, 8);
  const double low = 4.0 * std::log(2000.0 / (32.0 * kTwoPi)) / std::log(10000.0);
  const double high = 4.0 * std::log(2000.0 / kTwoPi) / std::log(10000.0);
  EXPECT_NEAR(low, 0.998, 1e-3);
  EXPECT_NEAR(high, 2.503, 1e-3);
  const double first = (1.0 - low) / (high - low), second = (2.0 - low) / (high - low);
  expect_same(rope.inv_freq[0], 1.0);
  // The ramp starts near pair 1, so the difference of the two has lost three digits, which count little in the sum.
  expect_same(rope.inv_freq[1], 0.1 * (first / 4 + (1 - first)));
  expect_same(rope.inv_freq[2], 0.01 * (second / 4 + (1 - second)));
  expect_same(rope.inv_freq[3], 0.001 / 4);
}

// So few original positions that both ends of the ramp fall before pair 0: everything but pair 0 is divided.
TEST(Rope, YarnRampMayHaveNoWidth) {
  RopeConfig config = yarn();
  config.original_max_positions = 6;  // ln(6 / 2 pi) < 0: low clamps to 0, ceil(high) is 0
  const Rope rope = make_rope(config, 8);
  expect_same(rope.inv_freq[0], 1.0);
  for (int i = 1; i < 4; ++i) expect_same(rope.inv_freq[i], std::pow(10.0, -i) / 4);
}

TEST(Rope, YarnAttentionFactorIsGivenOrARatioOrTheFormula) {
  RopeConfig config = yarn();
  config.mscale = 2.0;
  expect_same(make_rope(config, 8).attention_factor, 1.0 + 0.1 * std::log(4.0));  // mscale alone does not count
  config.mscale_all_dim = 0.5;
  expect_same(make_rope(config, 8).attention_factor, (1.0 + 0.2 * std::log(4.0)) / (1.0 + 0.05 * std::log(4.0)));
  config.attention_factor = 1.25;
  EXPECT_EQ(make_rope(config, 8).attention_factor, 1.25);
  config = yarn();
  config.factor = 1.0;
  EXPECT_EQ(make_rope(config, 8).attention_factor, 1.0);
}

}  // namespace
}  // namespace kv
