#pragma once

#include <cstdint>
#include <vector>

#include "sim/budget/hull.h"
#include "sim/tasks/random.h"

namespace kv::ref {

// Gains of several heads, each of a kind that can go wrong in its own way.
enum class GainKind {
  kNoisy,     // heavy-tailed (exp of about normal), the larger ones only tend to come first
  kSorted,    // the same, in descending order: every count is a vertex of the hull
  kPlateaus,  // 0 to 3 in any order: many ties
  kZeros,     // noisy, then only zeros
  kEqual,     // all 1
  kRising,    // noisy, in ascending order: one block
};
inline constexpr int kGainKinds = 6;

std::vector<float> draw_gains(Random& random, GainKind kind, int entries);

// The gains of a problem beside the views that a solver takes.
struct BudgetProblem {
  std::vector<std::vector<float>> gains;
  std::vector<int32_t> least;  // empty: 0

  std::vector<HeadGains> heads() const;
};

// Heads of any kind with up to `most_entries` entries, of which up to 3 always stay.
BudgetProblem draw_budget_problem(Random& random, int heads, int most_entries);

}  // namespace kv::ref
