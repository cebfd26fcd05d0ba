#pragma once

#include <cstdint>

#include "sim/budget/search.h"
#include "sim/budget/solver.h"

namespace kv {

inline constexpr int32_t kMostExactEntries = 4096;  // a head

// The optimum of the multiple-choice knapsack that HullSolver relaxes (002 Eq. 8): counts of that sum, least <= count
// <= entries, of smallest loss. The reference for small problems; loss against HullSolver::at(total).loss is the price
// of the relaxation, against `bound` (the hulls' loss, as in at()) what no split can close.
//
// Exact up to rounding: no split loses less than the result by more than about 2^-51 · (entries + heads) · (Σ of all
// gains + λ · all entries), λ the slope at the total. Equal losses: the lexicographically largest counts (the lower
// head keeps more).
//
// UserError: a total out of range, more than kMostExactEntries entries in a head, or more near-optimal splits than the
// limits allow: gains of few distinct values (0, 1, 0, 1, … in every head), or an order that is wrong throughout.
BudgetSplit solve_exact(const HullSolver& hull, int64_t total, const ExactLimits& limits = {});

}  // namespace kv
