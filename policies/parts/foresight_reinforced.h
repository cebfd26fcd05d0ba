#pragma once

#include <span>
#include <vector>

#include "kernels/eviction_surrogate.h"
#include "policies/parts/foresight_scorer.h"
#include "sim/learned/eviction_reward.h"
#include "sim/learned/learner.h"
#include "sim/policy/params.h"
#include "sim/policy/policy.h"

namespace kv {

// ForesightKV's reinforcement stage (001, Sec. 3.3; GRPO as the released train.py has it). Every text is read by a
// group of rollouts that draw their own evictions; a rollout is worth what its evictions did to the losses behind them
// (sim/learned/eviction_reward.h), set against its group. The loss of a rollout is the mean over events, KV heads and
// evicted entries of kernels/eviction_surrogate.h, added up over layers, mean over rollouts.
// The weights that draw are those that learn, once, as in the code: there the clipped ratio is 1 but for rounding, here
// exactly. So a loss is linear in the advantage, and its gradient is taken at the event: nothing is replayed to learn
// from it, no mask and no feature is kept.
class ForesightReinforced {
 public:
  explicit ForesightReinforced(const ForesightShape& shape);

  void read(Params& params);
  // The options that read() asks for.
  static std::vector<std::string_view> keys() { return {"group", "together", "reward", "threshold", "log_prob", "kl"}; }
  static std::vector<LearnedMeasure> measures();
  // The weights that learning began with, which the KL holds on to.
  void set_reference(std::span<const float> parameters);
  // As Learner::learn. Measures reward, its spread within a group (deviation, mean over texts), the KL, and how much a
  // token behind the first eviction loses by eviction, in nats.
  std::vector<LearnedMean> learn(const LearnBatch& batch, int budget, int interval, std::span<const float> parameters,
                                 std::span<double> gradient);

 private:
  class Rollouts;

  Policy drawing_;
  ForesightScorer* scorer_;  // its
  std::vector<float> reference_;
  int group_ = 8;
  int together_ = 4;
  RewardOptions reward_;
  DrawLaw law_ = DrawLaw::kPlackettLuce;
  float kl_weight_ = 0.03F;
};

}  // namespace kv
