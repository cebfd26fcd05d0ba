#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kv {

// What a rollout of evictions is worth: minus what it did to the losses of the tokens behind the first eviction (001,
// Eq. 7 and Table 4). Δ_t = loss with evictions − loss of the full cache.
enum class RewardKind : uint8_t {
  kOurs,  // −mean over low-entropy tokens of Δ² where Δ > η, 0 elsewhere: a mean over all of them, as in the code
  kAll,   // −mean loss of all tokens
  kLow,   // −mean loss of the low-entropy ones
  kHigh,  // −mean loss of the high-entropy ones
  kNone,  // nothing: all rollouts are alike, and only the KL teaches
  kLowLarge,  // as kLow, where a token with Δ ≤ η counts as 0
};

struct RewardOptions {
  RewardKind kind = RewardKind::kOurs;
  double threshold = 1.5;   // η, strictly above which an increase is large
  double high_share = 0.2;  // of the tokens, int(share · n) of the highest entropy, which are not low
};

// Losses and entropies of the same tokens: by the full cache, by the rollout, and of the full cache's prediction.
// Of equal entropies the later tokens are the higher ones (the code's sort is not stable and leaves that open).
// 0 where there is no token that counts.
double eviction_reward(std::span<const float> full_loss, std::span<const float> evicted_loss,
                       std::span<const float> entropy, const RewardOptions& options);

// (R − mean) / (σ + 1e-8) over a group of rollouts of one sequence, σ the population's.
std::vector<double> group_advantages(std::span<const double> rewards);

}  // namespace kv
