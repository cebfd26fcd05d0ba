#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kv::ref {

// How far a result may be from its reference: roundings · epsilon · magnitude. `roundings` is derived by the caller
// (the number of rounded operations an element goes through); `magnitude` bounds the absolute values that are summed.
struct Tolerance {
  double roundings = 1;
  double magnitude = 1;
  double epsilon = std::numeric_limits<float>::epsilon();
  double allowed() const { return roundings * epsilon * magnitude; }
};

// Accepts with err <= tolerance, so NaN fails.
inline ::testing::AssertionResult is_close(double got, double want, const Tolerance& tolerance) {
  if (std::abs(got - want) <= tolerance.allowed()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "got " << got << ", want " << want << ", error " << std::abs(got - want)
                                       << " > " << tolerance.allowed();
}

inline void expect_close(double got, double want, const Tolerance& tolerance) {
  EXPECT_TRUE(is_close(got, want, tolerance));
}

// Element by element; reports the first that is off.
template <class Got, class Want>
void expect_close(const std::vector<Got>& got, const std::vector<Want>& want, const Tolerance& tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(is_close(static_cast<double>(got[i]), static_cast<double>(want[i]), tolerance)) << "element " << i;
  }
}

}  // namespace kv::ref
