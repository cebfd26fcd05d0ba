#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "policies/parts/retention_network.h"
#include "policies/parts/taught_groups.h"
#include "sim/learned/learner.h"

namespace kv {

// What a retention training's second loss is taken over.
struct RetentionCapacity {
  bool is_global = true;  // one budget for all layers and heads (003), or one a head (TRIM-KV)
  int entries = 0;        // a head's, M
  double weight = 1;      // λ
};

// Trains global retention's gates (003, Sec. 4; as the released code has it): a model whose attention fades is to say
// what the full one says, while what has not faded is to fit a budget:
//   loss = mean over tokens that have a next one of ½ (KL(full ‖ faded) + loss of the next token) (kernels/
//   vocabulary_loss.h) + λ · excess of soft occupancies over the capacity (kernels/capacity_hinge.h)
// The released recipe: AdamW at 2e-4, decay 0.01, a step of four texts.
class RetentionTraining final : public Learner {
 public:
  RetentionTraining(const RetentionShape& shape, std::string file_name)
      : network_(shape), file_name_(std::move(file_name)) {}

  void read(Params& params) override;
  TrainingOptions defaults() const override;
  std::vector<LearnedMeasure> measures() const override;
  std::vector<LearnedPart> parts(const SourceInfo& info) const override { return network_.parts(info); }
  std::string file_name() const override { return file_name_; }
  std::map<std::string, std::string> settings() const override { return network_.shape().settings(); }
  std::vector<std::string> idle_options() const override { return {"age_offset", "horizon"}; }
  int64_t least_tokens() const override { return 2; }
  std::vector<float> initial(const SourceInfo& info, uint64_t seed) const override {
    return network_.initial(info, seed);
  }
  void use(const SourceInfo&, std::span<const float> parameters) override {
    used_.assign(parameters.begin(), parameters.end());
  }
  // What use() was given; empty: nothing.
  const std::vector<float>& used() const { return used_; }
  std::vector<LearnedMean> learn(const LearnBatch& batch, std::span<const float> parameters,
                                 std::span<double> gradient) override;
  void begin_next(const LearnBatch& next) override { groups_.begin_next(next, tokens_at_once_); }

 private:
  RetentionNetwork network_;  // the parameters of the step that is being taken
  std::string file_name_;
  std::vector<float> used_;
  RetentionCapacity capacity_;
  int64_t tokens_at_once_ = 1;
  bool deterministic_ = true;
  TaughtGroups groups_;
};

}  // namespace kv
