#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "policies/parts/foresight_scorer.h"
#include "sim/learned/learner.h"
#include "sim/policy/policy.h"

namespace kv {

// ForesightKV's supervised stage (001, Sec. 3.3; the released train.py). Golden Eviction cuts, so that the network sees
// the caches that the oracle leaves; it rates the same entries, and where Golden's α (policies/golden.cpp) says that
// one stays before another, the pair costs max(0, margin − (y_i − y_j)). A row is an event and a KV head: the mean over
// its pairs, then over a text's rows of a layer, added up over layers and texts, as in the code. Loss, gradient and
// metric are taken at the event, so no feature outlives it. Deviation: the output's bias, which moves all of a row's
// scores alike, has no gradient but rounding; it stays.
class ForesightTraining final : public Learner {
 public:
  // Hands parameters on to `scorer`, the policy's own.
  ForesightTraining(ForesightScorer& scorer, std::string file_name);

  void read(Params& params) override;
  std::vector<LearnedPart> parts(const SourceInfo& info) const override;
  std::string file_name() const override { return file_name_; }
  std::map<std::string, std::string> settings() const override;
  int64_t least_tokens() const override { return budget_ + interval_ + 1; }
  std::vector<float> initial(const SourceInfo& info, uint64_t seed) const override;
  void use(const SourceInfo& info, std::span<const float> parameters) override { scorer_.use(info, parameters); }
  std::vector<Measured> learn(const LearnBatch& batch, std::span<const float> parameters,
                              std::span<double> gradient) override;

 private:
  class RowLosses;

  ForesightScorer& scorer_;
  std::string file_name_;
  Policy golden_, onlooker_;
  ForesightScorer* looking_on_ = nullptr;  // the onlooker's
  int budget_ = 1024, interval_ = 256;
  float margin_ = 0.01F;
};

}  // namespace kv
