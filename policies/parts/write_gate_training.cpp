#include "policies/parts/write_gate_training.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "kernels/find_bad.h"
#include "kernels/gate_sparsity.h"
#include "policies/parts/distillation.h"
#include "policies/parts/options.h"
#include "policies/parts/text_groups.h"
#include "policies/parts/write_gate_attention.h"
#include "sim/learned/learned_file.h"
#include "sim/source/source.h"

namespace kv {

namespace {

// A step of WG-KV's training over all of its texts.
class WriteGateStep {
 public:
  struct Loss {
    double lambda = 0;
    int window = 0;  // of the sparsity
    float threshold = 0;
  };

  WriteGateStep(const LearnBatch& batch, const ForwardModel& model, WriteGateAttention& attention, const Loss& loss)
      : batch_(batch), model_(model), attention_(attention), loss_(loss), distillation_(model, batch.memory) {}

  void add(const TextGroup& group, Ref teacher) {
    Tensor verdict(batch_.backend, DType::kU8, sizeof(Verdict));  // fresh memory: no gate is bad
    auto* on_device = reinterpret_cast<Verdict*>(verdict.ref().as<uint8_t>());
    distillation_.learn(group, teacher, attention_, [&] { judge(group, on_device); });
    verdicts_.push_back({.tokens = group.block.tokens, .share = group.share, .verdict = verdict.begin_download()});
  }

  // Once all groups are asked for: waits for what they say, of which the first gate that is no number is refused.
  void look() {
    for (const OfGroup& group : verdicts_) note(group, group.verdict->wait_for<Verdict>().front());
    distance_ = distillation_.loss();
  }
  double distance() const { return distance_; }
  double sparsity() const { return sparsity_; }
  double admitted() const { return admitted_; }

 private:
  // What a group's gates come to, as ops write it on the device: one download.
  struct Verdict {
    uint64_t first_bad = kNothingBad;  // of gates that are no numbers
    float sparsity = 0;
    int32_t admitted = 0;
  };

  struct OfGroup {
    int64_t tokens = 0;
    double share = 0;
    std::unique_ptr<Download> verdict;
  };

  int64_t gates_of(int64_t tokens) const { return int64_t{model_.config.layers} * tokens * model_.config.kv_heads; }

  void judge(const TextGroup& group, Verdict* verdict) {
    const ModelConfig& config = model_.config;
    batch_.backend.find_bad_value({.values = {attention_.gates(), DType::kF32},
                                   .count = gates_of(group.block.tokens),
                                   .first = &verdict->first_bad});
    batch_.backend.gate_sparsity({.shape = {.segments = group.block.on_device(),
                                            .segment_count = std::ssize(group.block.segments),
                                            .max_count = group.block.max_count,
                                            .layers = config.layers,
                                            .tokens = group.block.tokens,
                                            .heads = config.kv_heads},
                                  .gates = attention_.gates(),
                                  .window = loss_.window,
                                  .weight = static_cast<float>(loss_.lambda * group.share),
                                  .threshold = loss_.threshold,
                                  .loss = &verdict->sparsity,
                                  .admitted = &verdict->admitted,
                                  .gradient = attention_.gate_gradient()});
  }

  // Names the first head whose gates are no numbers.
  void note(const OfGroup& group, const Verdict& verdict) {
    if (verdict.first_bad != kNothingBad) {
      const auto at = static_cast<int64_t>(verdict.first_bad), heads = int64_t{model_.config.kv_heads};
      throw NotFiniteError(
          fmt::format("layer {}, KV head {}: a gate is no number", at / (group.tokens * heads), at % heads));
    }
    sparsity_ += group.share * verdict.sparsity;
    admitted_ += group.share * verdict.admitted / static_cast<double>(gates_of(group.tokens));
  }

  const LearnBatch& batch_;
  const ForwardModel& model_;
  WriteGateAttention& attention_;
  Loss loss_;
  Distillation distillation_;
  std::vector<OfGroup> verdicts_;
  double distance_ = 0, sparsity_ = 0, admitted_ = 0;
};

}  // namespace

void WriteGateTraining::read(Params& params) {
  lambda_ = read_lambda(params, 0.04);  // 004: 0.02 to 1.28
  const bool is_code =
      params.get("sparsity", "code", {"code", "paper"},
                 "wg-kv: the share of a cache that gates fill, the window's aside (code), or of a token "
                 "as if there were no window (paper)") == "code";
  sparsity_window_ = is_code ? admitted_.window : 0;
  tokens_at_once_ = read_tokens_at_once(params);
  deterministic_ = read_deterministic(params);
  if (file_name_ == kInitialWeights) {
    throw UserError(fmt::format("wg-kv: weights = {} are no file, expected another name to train", kInitialWeights));
  }
}

TrainingOptions WriteGateTraining::defaults() const {
  return {.steps = 1000, .batch = 1, .rate = 1e-3, .warm_up_share = 0.1, .decay = 0.01, .clip = 0};
}

std::vector<LearnedMeasure> WriteGateTraining::measures() const {
  return {{.name = "hidden_distance",
           .title = "Mean squared distance of the final hidden states from the full model's",
           .better = "lower"},
          {.name = "gate_sparsity", .title = "Expected share of a cache that gates fill", .better = "lower"},
          {.name = "admission_rate", .title = "Share of tokens whose gate lets them in", .better = "lower"}};
}

std::vector<LearnedMean> WriteGateTraining::learn(const LearnBatch& batch, std::span<const float> parameters,
                                                  std::span<double> gradient) {
  const ForwardModel& model = model_of(batch);
  const SourceInfo& info = batch.source.info();
  WriteGateGradients gradients(batch.backend, info, network_);
  WriteGateAttention attention(batch.backend, model.config, network_, admitted_.window, gradients, deterministic_);
  WriteGateStep step(batch, model, attention,
                     {.lambda = lambda_, .window = sparsity_window_, .threshold = admitted_.threshold});
  bool has_parameters = false;
  groups_.for_each(batch, tokens_at_once_, [&](const TextGroup& group, Ref teacher) {
    if (!std::exchange(has_parameters, true)) network_.use(batch.backend, info, parameters);
    step.add(group, teacher);
  });
  const std::unique_ptr<Download> slopes = gradients.begin_download();
  batch.when_asked();
  step.look();
  gradients.add_to(parameters, slopes->wait_for<float>(), gradient);
  if (!std::isfinite(step.distance())) {
    throw NotFiniteError(fmt::format("the hidden states' distance is {}", step.distance()));
  }
  const double share = share_of(batch);
  return {{.metric = "hidden_distance", .value = step.distance() / share, .weight = share},
          {.metric = "gate_sparsity", .value = step.sparsity() / share, .weight = share},
          {.metric = "admission_rate", .value = step.admitted() / share, .weight = share}};
}

}  // namespace kv
