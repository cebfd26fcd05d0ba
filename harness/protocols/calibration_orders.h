#pragma once

#include <array>
#include <memory>
#include <vector>

#include "sim/budget/calibration.h"
#include "sim/policy/protection.h"
#include "sim/replay/prefill.h"

namespace kv {

// The order in which a scorer keeps the entries of a context of `tokens` tokens (sim/policy/policy_order.h), of each
// head and for every ratio of a profile: a scorer may protect by what is kept, so the order may differ from ratio to
// ratio.
class ScorerOrders {
 public:
  using Orders = CalibrationQuestion::Orders;

  // `interval` as in PrefillArgs.
  ScorerOrders(Backend& backend, const SourceInfo& info, const Prefill& prefill, size_t policy, const Scorer& scorer,
               int32_t tokens, int interval);

  std::array<const Orders*, kProfileRatios> by_ratio() const;
  const Protection& at_half() const { return rankings_[ratios_[ratio_index(0.5)]].protection; }

 private:
  struct Ranking {
    Protection protection;
    Orders orders;
  };
  std::vector<Ranking> rankings_;                // one a protection
  std::array<size_t, kProfileRatios> ratios_{};  // index of a ratio's ranking
};

// Most important entries first, equal ones by position.
CalibrationQuestion::Orders oracle_order(const CalibrationQuestion::Values& importance);

}  // namespace kv
