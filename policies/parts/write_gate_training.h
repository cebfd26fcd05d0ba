#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "policies/parts/taught_groups.h"
#include "policies/parts/write_gate_network.h"
#include "sim/learned/learner.h"

namespace kv {

// Trains WG-KV's gates (004, Sec. 3.3 and App. C): the final hidden states of a model whose attention takes its keys as
// the gates weigh them are to be the full model's, while gates are to let in little:
//   loss = distance of the states (policies/parts/distillation.h) + λ · sparsity of the gates (kernels/gate_sparsity.h)
// The sparsity is that of the gates themselves; the released code's sees max(g, 1e-3), which adds at most 2e-3 to it.
// The published optimiser is the default; the paper's is a cosine to 0, which the released code calls a decay over 0.9.
class WriteGateTraining final : public Learner {
 public:
  // What of the admission the training has to know; gates above the threshold count as admitted in what is measured.
  struct Admitted {
    int window = 0;
    float threshold = 0;
  };
  WriteGateTraining(double expand, Admitted admitted, std::map<std::string, std::string> settings,
                    std::string file_name)
      : network_(expand), admitted_(admitted), settings_(std::move(settings)), file_name_(std::move(file_name)) {}

  void read(Params& params) override;
  TrainingOptions defaults() const override;
  std::vector<LearnedMeasure> measures() const override;
  std::vector<LearnedPart> parts(const SourceInfo& info) const override { return network_.parts(info); }
  std::string file_name() const override { return file_name_; }
  std::map<std::string, std::string> settings() const override { return settings_; }
  std::vector<std::string> idle_options() const override { return {"drop", "sinks"}; }
  std::vector<InputFile> check(const ModelIdentity& model) const override {
    if (!model.is_absent()) network_.require_fit(model.shape().head_dim);
    return {};
  }
  // One token that outlives the window.
  int64_t least_tokens() const override { return int64_t{admitted_.window} + 1; }
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
  WriteGateNetwork network_;  // the parameters of the step that is being taken
  Admitted admitted_;
  std::map<std::string, std::string> settings_;
  std::string file_name_;
  std::vector<float> used_;
  double lambda_ = 0.04;
  int sparsity_window_ = 0;
  int64_t tokens_at_once_ = 1;
  bool deterministic_ = true;
  TaughtGroups groups_;
};

}  // namespace kv
