#include "policies/parts/retention_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/capacity_hinge.h"
#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/occupancy.h"
#include "kernels/vocabulary_loss.h"
#include "policies/parts/options.h"
#include "policies/parts/retention_attention.h"
#include "policies/parts/text_groups.h"
#include "sim/learned/learned_file.h"
#include "sim/learned/student.h"
#include "sim/source/source.h"

namespace kv {

namespace {

// A step of the training over all of its texts.
class RetentionStep {
 public:
  RetentionStep(const LearnBatch& batch, const ForwardModel& model, RetentionAttention& attention,
                const RetentionCapacity& capacity)
      : batch_(batch),
        backend_(batch.backend),
        model_(model),
        config_(model.config),
        attention_(attention),
        capacity_(capacity),
        student_(model),
        predictions_(tokens_of(batch) - std::ssize(batch.sequences)) {}

  void add(const TextGroup& group) {
    teacher_.reserve(backend_, backend_.activation_type(), group.block.tokens * config_.hidden_size);
    student_.teach(group.block, group.on_device(), teacher_.ref());
    add_words(group, student_.run(group.block, group.on_device(), attention_));
    add_capacity(group);
    attention_.add_loss([&](int layer, const float* log_retention, float* gradient) {
      const TokenHeads of_layer = shape(group, 1, config_.kv_heads);
      const int64_t first = capacity_.is_global ? 0 : layer * of_layer.elements();
      backend_.occupancy_backward({.shape = of_layer,
                                   .log_beta = log_retention,
                                   .of = occupancy_of(),
                                   .slopes = occupancy_.ref().as<float>() + first,
                                   .gradient = gradient});
    });
    student_.backward(teacher_.ref());
  }

  double next_token() const { return next_token_; }
  double divergence() const { return divergence_; }
  double excess() const { return excess_; }
  double overfull() const { return overfull_; }

 private:
  OccupancyOf occupancy_of() const { return capacity_.is_global ? OccupancyOf::kAllHeads : OccupancyOf::kEachHead; }

  TokenHeads shape(const TextGroup& group, int64_t layers, int heads) const {
    return {.segments = group.block.on_device(),
            .segment_count = std::ssize(group.block.segments),
            .max_count = group.block.max_count,
            .layers = layers,
            .tokens = group.block.tokens,
            .heads = heads};
  }

  // Losses of what is said, their gradient in place of the teacher's states.
  void add_words(const TextGroup& group, ConstRef states) {
    const int64_t tokens = group.block.tokens;
    std::vector<int32_t> targets(static_cast<size_t>(tokens), -1);
    std::vector<float> weights(targets.size(), 0);
    std::vector<int32_t> ids(targets.size());
    backend_.download(ids.data(), group.on_device(), ids.size() * sizeof(int32_t));
    for (const Segment& segment : group.block.segments) {
      for (int32_t i = 0; i + 1 < segment.count; ++i) {
        const auto at = static_cast<size_t>(segment.first_token + i);
        targets[at] = ids[at + 1];
        weights[at] = 1;
      }
    }
    targets_.reserve(backend_, DType::kI32, tokens);
    weights_.reserve(backend_, DType::kF32, tokens);
    of_next_.reserve(backend_, DType::kF32, tokens);
    of_divergence_.reserve(backend_, DType::kF32, tokens);
    backend_.upload(targets_.ref().data, targets.data(), targets.size() * sizeof(int32_t));
    backend_.upload(weights_.ref().data, weights.data(), weights.size() * sizeof(float));
    backend_.vocabulary_loss({.student = states,
                              .teacher = teacher_.ref(),
                              .weight = model_.weights.output_embedding().ref(),
                              .targets = targets_.ref().as<int32_t>(),
                              .weights = weights_.ref().as<float>(),
                              .scale = static_cast<float>(1 / static_cast<double>(predictions_)),
                              .next_token = of_next_.ref().as<float>(),
                              .divergence = of_divergence_.ref().as<float>(),
                              .gradient = teacher_.ref(),
                              .tokens = tokens,
                              .width = config_.hidden_size,
                              .vocab = config_.vocab_size});
    next_token_ += sum_of(of_next_, tokens) / static_cast<double>(predictions_);
    divergence_ += sum_of(of_divergence_, tokens) / static_cast<double>(predictions_);
  }

  double sum_of(const Tensor& losses, int64_t tokens) const {
    std::vector<float> values(static_cast<size_t>(tokens));
    backend_.download(values.data(), losses.ref().data, values.size() * sizeof(float));
    return std::accumulate(values.begin(), values.end(), 0.0);
  }

  // Of soft occupancies, whose slopes take their place. Where a step's texts come in groups, each counts by its share.
  void add_capacity(const TextGroup& group) {
    const TokenHeads heads = shape(group, config_.layers, config_.kv_heads),
                     counted = capacity_.is_global ? shape(group, 1, 1) : heads;
    refuse_nan(group);
    occupancy_.reserve(backend_, DType::kF32, counted.elements());
    occupancy_.fill_zero();
    backend_.occupancy({.shape = heads,
                        .log_beta = attention_.log_retention(),
                        .of = occupancy_of(),
                        .occupancy = occupancy_.ref().as<float>()});
    Tensor loss(backend_, DType::kF32, 1), overfull(backend_, DType::kI32, 1);
    backend_.capacity_hinge({.shape = counted,
                             .occupancy = occupancy_.ref().as<float>(),
                             .pooled = capacity_.is_global ? int64_t{config_.layers} * config_.kv_heads : 1,
                             .capacity = capacity_.entries,
                             .weight = static_cast<float>(capacity_.weight * group.share),
                             .loss = loss.ref().as<float>(),
                             .overfull = overfull.ref().as<int32_t>(),
                             .gradient = occupancy_.ref().as<float>()});
    float excess = 0;
    int32_t places = 0;
    loss.download(&excess, sizeof(excess));
    overfull.download(&places, sizeof(places));
    excess_ += group.share * excess;
    overfull_ += group.share * places / static_cast<double>(counted.elements());
  }

  // UserError names the first head whose β are no numbers.
  void refuse_nan(const TextGroup& group) const {
    const int64_t of_layer = group.block.tokens * config_.kv_heads;
    std::vector<float> values(static_cast<size_t>(config_.layers * of_layer));
    backend_.download(values.data(), attention_.log_retention(), values.size() * sizeof(float));
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i])) continue;
      const auto at = static_cast<int64_t>(i);
      throw UserError(fmt::format("step {}: layer {}, KV head {}: log β is {}", batch_.step, at / of_layer,
                                  at % config_.kv_heads, values[i]));
    }
  }

  const LearnBatch& batch_;
  Backend& backend_;
  const ForwardModel& model_;
  const ModelConfig& config_;
  RetentionAttention& attention_;
  RetentionCapacity capacity_;
  Student student_;
  int64_t predictions_;                                 // tokens of the step that have a next one
  Tensor teacher_;                                      // [tokens, hidden], then the gradient
  Tensor targets_, weights_, of_next_, of_divergence_;  // [tokens]
  Tensor occupancy_;                                    // [tokens] or [layers, tokens, kv_heads], then its slopes
  double next_token_ = 0, divergence_ = 0, excess_ = 0, overfull_ = 0;
};

}  // namespace

void RetentionTraining::read(Params& params) {
  capacity_.is_global =
      params.get("capacity", "global", {"global", "local"},
                 "retention: all layers and heads share one (global, 003), or each head has its own (local, "
                 "TRIM-KV)") == "global";
  capacity_.entries =
      option_at_least(params, 1, "entries", 128, "retention: of a head, that the capacity holds (003: 128 at 32K)");
  capacity_.weight = read_lambda(params, 1);
  tokens_at_once_ = read_tokens_at_once(params);
  if (file_name_ == kInitialWeights) {
    throw UserError(
        fmt::format("retention: weights = {} are no file, expected another name to train", kInitialWeights));
  }
}

TrainingOptions RetentionTraining::defaults() const {
  return {.steps = 500, .batch = 4, .rate = 2e-4, .warm_up_share = 0.1, .decay = 0.01, .clip = 0};
}

std::vector<LearnedMeasure> RetentionTraining::measures() const {
  return {{.name = "divergence", .title = "KL from what the full model says, nats a token", .better = "lower"},
          {.name = "next_token_loss", .title = "Loss of the next token, nats", .better = "lower"},
          {.name = "capacity_excess", .title = "Soft occupancy beyond the capacity, relative", .better = "lower"},
          {.name = "overfull", .title = "Share of tokens at which the capacity is exceeded", .better = "lower"}};
}

std::vector<Measured> RetentionTraining::learn(const LearnBatch& batch, std::span<const float> parameters,
                                               std::span<double> gradient) {
  const ForwardModel* model = batch.source.frozen_model();
  KV_CHECK(model);  // protocol train runs a model
  const SourceInfo& info = batch.source.info();
  network_.use(batch.backend, info, parameters);
  RetentionGradients gradients(batch.backend, info, network_);
  RetentionAttention attention(batch.backend, model->config, network_, gradients);
  RetentionStep step(batch, *model, attention, capacity_);
  for_each_group(batch, model->config.vocab_size, tokens_at_once_, [&](const TextGroup& group) { step.add(group); });
  gradients.add_to(gradient);
  if (!std::isfinite(step.divergence() + step.next_token())) {
    throw UserError(
        fmt::format("step {}: the loss of what is said is {}", batch.step, step.divergence() + step.next_token()));
  }
  return {{.metric = "divergence", .value = step.divergence(), .unit = "nats"},
          {.metric = "next_token_loss", .value = step.next_token(), .unit = "nats"},
          {.metric = "capacity_excess", .value = step.excess()},
          {.metric = "overfull", .value = step.overfull()}};
}

}  // namespace kv
