#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "policies/parts/duo_attention.h"
#include "policies/parts/taught_groups.h"
#include "sim/learned/learner.h"

namespace kv {

// Trains DuoAttention's α, by which heads retrieve, as WG-KV's code does for its comparison: α = σ(parameter), a
// parameter a KV head, from 0 on:
//   loss = distance of the final hidden states (policies/parts/distillation.h) + λ · mean of α
class DuoTraining final : public Learner {
 public:
  DuoTraining(const DuoAttention::Streaming& streaming, std::string file_name)
      : streaming_(streaming), file_name_(std::move(file_name)) {}

  void read(Params& params) override;
  TrainingOptions defaults() const override;
  std::vector<LearnedMeasure> measures() const override;
  std::vector<LearnedPart> parts(const SourceInfo&) const override { return {{"alpha_logit", {}}}; }
  std::string file_name() const override { return file_name_; }
  std::map<std::string, std::string> settings() const override;
  std::vector<std::string> idle_options() const override { return {"removed", "retrieval"}; }
  int64_t least_tokens() const override { return int64_t{streaming_.sinks} + streaming_.window + 1; }
  std::vector<float> initial(const SourceInfo& info, uint64_t seed) const override;
  void use(const SourceInfo&, std::span<const float> parameters) override {
    used_.assign(parameters.begin(), parameters.end());
  }
  // What use() was given; empty: nothing.
  const std::vector<float>& used() const { return used_; }
  std::vector<LearnedMean> learn(const LearnBatch& batch, std::span<const float> parameters,
                                 std::span<double> gradient) override;
  void begin_next(const LearnBatch& next) override { groups_.begin_next(next, tokens_at_once_); }

  // α of parameters.
  static std::vector<float> alphas(std::span<const float> parameters);

 private:
  DuoAttention::Streaming streaming_;
  std::string file_name_;
  std::vector<float> used_;
  double lambda_ = 0.05;
  int64_t tokens_at_once_ = 1;
  bool deterministic_ = true;
  TaughtGroups groups_;
};

}  // namespace kv
