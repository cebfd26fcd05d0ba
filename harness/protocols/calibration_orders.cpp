#include "harness/protocols/calibration_orders.h"

#include <algorithm>
#include <numeric>

#include "sim/cache/to_host.h"
#include "sim/policy/policy_order.h"
#include "sim/replay/schedule.h"

namespace kv {

namespace {

std::vector<int32_t> first_positions(size_t tokens) {
  std::vector<int32_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

CalibrationQuestion::Orders orders_under(Backend& backend, const SourceInfo& info, const Prefill& prefill,
                                         size_t policy, const Protection& protection, int32_t tokens) {
  const std::vector<int32_t> positions = first_positions(static_cast<size_t>(tokens));
  CalibrationQuestion::Orders orders;
  for (int layer = 0; layer < info.layers; ++layer) {
    const ScoredLayer scored = prefill.scored(policy, layer);
    for (int head = 0; head < info.kv_heads; ++head) {
      const auto scores = to_host(backend, scored.scores.row(head), tokens);
      std::vector<float> ties;
      if (scored.ties) ties = to_host(backend, scored.ties.row(head), tokens);
      orders.push_back(policy_order(protection, positions, scores, ties));
    }
  }
  return orders;
}

}  // namespace

ScorerOrders::ScorerOrders(Backend& backend, const SourceInfo& info, const Prefill& prefill, size_t policy,
                           const Scorer& scorer, int32_t tokens, int interval) {
  for (size_t ratio = 0; ratio < kProfileRatios; ++ratio) {
    const int kept = kept_tokens(tokens, static_cast<double>(kProfileRatios - ratio) / 100);
    Protection protection = scorer.protects(kept, interval);
    // A scorer that protects all it keeps may be asked for less than its sinks here.
    protection = {std::max(0, protection.sinks), std::max(0, protection.recent)};
    const auto found = std::find_if(rankings_.begin(), rankings_.end(),
                                    [&](const Ranking& known) { return known.protection == protection; });
    ratios_[ratio] = static_cast<size_t>(found - rankings_.begin());
    if (found != rankings_.end()) continue;
    rankings_.push_back({protection, orders_under(backend, info, prefill, policy, protection, tokens)});
  }
}

std::array<const ScorerOrders::Orders*, kProfileRatios> ScorerOrders::by_ratio() const {
  std::array<const Orders*, kProfileRatios> orders{};
  for (size_t ratio = 0; ratio < kProfileRatios; ++ratio) orders[ratio] = &rankings_[ratios_[ratio]].orders;
  return orders;
}

CalibrationQuestion::Orders oracle_order(const CalibrationQuestion::Values& importance) {
  CalibrationQuestion::Orders orders;
  for (const auto& head : importance) {
    orders.push_back(first_positions(head.size()));
    std::stable_sort(orders.back().begin(), orders.back().end(),
                     [&](int32_t a, int32_t b) { return head[static_cast<size_t>(a)] > head[static_cast<size_t>(b)]; });
  }
  return orders;
}

}  // namespace kv
