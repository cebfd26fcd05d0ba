#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/metrics/metric.h"

namespace kv {

// What the model says under the policy, token by token: the packed blocks of a replay put back in order.
class TokenRecord {
 public:
  void begin(const CaseView& view);
  void add(const Block& block, const TokenLosses& losses);

  // False for a source without losses (a trace).
  bool has_losses() const { return has_losses_; }
  std::span<const float> nll(int sequence) const { return nll_[static_cast<size_t>(sequence)]; }
  std::span<const int32_t> argmax(int sequence) const { return argmax_[static_cast<size_t>(sequence)]; }

 private:
  bool has_losses_ = false;
  std::vector<std::vector<float>> nll_;
  std::vector<std::vector<int32_t>> argmax_;
};

inline constexpr const char* kNoLosses = "the source has no losses: a trace is not fed back";
inline constexpr const char* kNoEvent = "no event happens in this sample";

}  // namespace kv
