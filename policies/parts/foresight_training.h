#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "policies/parts/foresight_reinforced.h"
#include "policies/parts/foresight_supervised.h"
#include "sim/learned/learned_file.h"
#include "sim/learned/learner.h"

namespace kv {

// What a training prunes to, and how often.
struct PruningSetting {
  int budget = 1024, interval = 256;
};

// Trains ForesightKV's weights: first from Golden's evictions (foresight_supervised.h), then, on what came of that, by
// what the model's losses say of its own (foresight_reinforced.h).
class ForesightTraining final : public Learner {
 public:
  // Hands parameters on to `scorer`, the policy's own; `file_name` is that of its weights.
  ForesightTraining(ForesightScorer& scorer, std::string file_name);

  void read(Params& params) override;
  TrainingOptions defaults() const override;
  std::vector<LearnedMeasure> measures() const override {
    return is_reinforced_ ? ForesightReinforced::measures() : ForesightSupervised::measures();
  }
  std::vector<LearnedPart> parts(const SourceInfo& info) const override { return scorer_.shape().parts(info); }
  std::string file_name() const override { return file_name_; }
  std::map<std::string, std::string> settings() const override { return scorer_.shape().settings(); }
  // Golden's evictions or a stage's own draws take the place of the slot's.
  std::vector<std::string> idle_options() const override { return {"sampling"}; }
  // One event at each setting, and a token behind it; reinforced, one more, whose loss the event can change.
  int64_t least_tokens() const override;
  std::vector<InputFile> check(const ModelIdentity& model) const override;
  void load(std::span<const InputFile> files) override;
  std::vector<float> initial(const SourceInfo& info, uint64_t seed) const override;
  void use(const SourceInfo& info, std::span<const float> parameters) override { scorer_.use(info, parameters); }
  std::vector<LearnedMean> learn(const LearnBatch& batch, std::span<const float> parameters,
                                 std::span<double> gradient) override;

 private:
  void check_stage(const Params& params) const;
  // Steps take the settings in turn, so that weights know features of every size: sums grow with the interval.
  const PruningSetting& setting_of(int64_t step) const;

  ForesightScorer& scorer_;
  std::string file_name_;
  bool is_reinforced_ = false;
  std::vector<PruningSetting> settings_{PruningSetting{}};
  std::string start_;  // name of the weights to begin with
  LearnedFile begun_;  // they
  ForesightSupervised supervised_;
  ForesightReinforced reinforced_;
};

}  // namespace kv
