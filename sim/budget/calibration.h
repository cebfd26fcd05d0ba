#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "sim/budget/profile.h"

namespace kv {

// What one question says of its context. [heads] of [tokens], heads = layers · kv_heads, one length for all.
struct CalibrationQuestion {
  using Values = std::vector<std::vector<float>>;
  using Orders = std::vector<std::vector<int32_t>>;

  const Values* importance = nullptr;                // Ĩ by position, finite, >= 0
  std::array<const Orders*, kProfileRatios> orders;  // positions as the scorer keeps them when that fraction leaves
};

// The part of a BudgetProfile that is measured.
struct CalibrationResult {
  std::vector<float> removed;  // [99, heads], to five decimals
  ProfileLosses losses;
  std::optional<SplitHalf> split_half;  // even questions against odd ones; none with a single question
};

// Calibrates as 002 Sec. 4.3: of each question the greedy division of the budget over hulls at every ratio;
// the profile is the mean of its local ratios. A budget is round((1 − ρ) · tokens · heads) entries. Every head keeps at
// least `least` of its entries (002 App. E: 0.01) and one entry, by which budgets are raised if need be; whole numbers
// rounded down. Deviation: 002 clamps ratios after the division, which would then keep more than its budget; here the
// division knows the least.
CalibrationResult calibrate(std::span<const CalibrationQuestion> questions, double least = 0.01);

}  // namespace kv
