#include "policies/parts/retention_training.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/capacity_hinge.h"
#include "kernels/error.h"
#include "kernels/find_bad.h"
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
        student_(model, batch.memory),
        own_predictions_(tokens_of(batch) - std::ssize(batch.sequences)),
        predictions_(step_tokens_of(batch) - batch.step_texts()) {}

  // Of a step of several groups, all of them before the first is taught: the capacity's mean is over the overfull
  // places of all its texts, of which no group alone knows how many there are.
  void count_overfull(const TextGroup& group) {
    Tensor verdict(backend_, DType::kU8, sizeof(Verdict));
    student_.run(group.block, group.on_device(), attention_);
    add_capacity(group, on_device(verdict));
    overfull_of_all_ += download(verdict).overfull;
  }

  // Asks for all of the group's ops, and waits for none. What the teacher says is written over.
  void add(const TextGroup& group, Ref teacher) {
    const int64_t tokens = group.block.tokens;
    Tensor said(backend_, DType::kU8, bytes_said(tokens));  // fresh memory: no β is bad
    upload_targets(group);
    add_words(group, student_.run(group.block, group.on_device(), attention_), teacher, losses_on_device(said));
    add_capacity(group, on_device(said));
    backend_.occupancy_backward({.shape = all_heads(group),
                                 .log_beta = attention_.log_retention(),
                                 .of = occupancy_of(),
                                 .slopes = occupancy_.ref().as<float>(),
                                 .gradient = attention_.other_gradient()});
    student_.backward(teacher);
    said_.push_back(
        {.tokens = tokens, .share = group.share, .counted = counted(group).elements(), .bytes = said.begin_download()});
  }

  // Once all groups are asked for: waits for what they say, of which the first β that is no number is refused.
  void look() {
    for (const OfGroup& group : said_) {
      const std::span<const std::byte> said = group.bytes->wait();
      note(group, verdict_of(said));
      note_losses(said, group.tokens);
    }
  }

  // After all groups of this part, before the first is taught.
  void count_overfull_of_step() {
    auto overfull = static_cast<double>(overfull_of_all_);
    if (batch_.part) batch_.part->all.add_up({&overfull, 1});
    overfull_of_all_ = static_cast<int64_t>(overfull);
  }

  LearnedMean divergence() const { return of_words("divergence", divergence_); }
  LearnedMean next_token() const { return of_words("next_token_loss", next_token_); }
  // Over the places where it is anything.
  LearnedMean excess() const {
    const auto own = static_cast<double>(own_overfull_), all = static_cast<double>(overfull_of_all_);
    return {.metric = "capacity_excess", .value = all > 0 && own > 0 ? excess_ * (all / own) : excess_, .weight = own};
  }
  LearnedMean overfull() const {
    const double share = share_of(batch_);
    return {.metric = "overfull", .value = overfull_ / share, .weight = share};
  }

 private:
  // What a group's β come to, as ops write it on the device. Behind it, [2, tokens] in f32, losses of the next token
  // and divergences: one download.
  struct Verdict {
    uint64_t first_bad = kNothingBad;  // of log β
    float excess = 0;
    int32_t overfull = 0;
  };
  struct OfGroup {
    int64_t tokens = 0;
    double share = 0;
    int64_t counted = 0;  // occupancies
    std::unique_ptr<Download> bytes;
  };

  static Verdict* on_device(Tensor& verdict) { return reinterpret_cast<Verdict*>(verdict.ref().as<uint8_t>()); }
  static int64_t bytes_said(int64_t tokens) {
    return static_cast<int64_t>(sizeof(Verdict) + 2 * static_cast<size_t>(tokens) * sizeof(float));
  }
  static float* losses_on_device(Tensor& said) { return reinterpret_cast<float*>(on_device(said) + 1); }
  static Verdict verdict_of(std::span<const std::byte> bytes) {
    Verdict said;
    std::memcpy(&said, bytes.data(), sizeof(said));
    return said;
  }
  static Verdict download(const Tensor& verdict) {
    std::vector<std::byte> bytes(sizeof(Verdict));
    verdict.download(bytes.data(), bytes.size());
    return verdict_of(bytes);
  }

  // A sum over predictions here, divided by those of the step.
  LearnedMean of_words(const char* metric, double sum) const {
    const auto own = static_cast<double>(own_predictions_);
    return {.metric = metric, .value = sum * (static_cast<double>(predictions_) / own), .weight = own, .unit = "nats"};
  }

  OccupancyOf occupancy_of() const { return capacity_.is_global ? OccupancyOf::kAllHeads : OccupancyOf::kEachHead; }

  TokenHeads shape(const TextGroup& group, int64_t layers, int heads) const {
    return {.segments = group.block.on_device(),
            .segment_count = std::ssize(group.block.segments),
            .max_count = group.block.max_count,
            .layers = layers,
            .tokens = group.block.tokens,
            .heads = heads};
  }

  // Tokens of which a segment has the next one have it as their target.
  void upload_targets(const TextGroup& group) {
    std::vector<int32_t> targets(group.ids.size(), -1);
    std::vector<float> weights(targets.size(), 0);
    for (const Segment& segment : group.block.segments) {
      for (int32_t i = 0; i + 1 < segment.count; ++i) {
        const auto at = static_cast<size_t>(segment.first_token + i);
        targets[at] = group.ids[at + 1];
        weights[at] = 1;
      }
    }
    targets_.reserve(backend_, DType::kI32, group.block.tokens);
    weights_.reserve(backend_, DType::kF32, group.block.tokens);
    backend_.upload(targets_.ref().data, targets.data(), targets.size() * sizeof(int32_t));
    backend_.upload(weights_.ref().data, weights.data(), weights.size() * sizeof(float));
  }

  // Losses of what is said, [2, tokens], their gradient in place of the teacher's states.
  void add_words(const TextGroup& group, ConstRef states, Ref teacher, float* next_token) {
    const int64_t tokens = group.block.tokens;
    backend_.vocabulary_loss({.student = states,
                              .teacher = teacher,
                              .weight = model_.weights.output_embedding().ref(),
                              .targets = targets_.ref().as<int32_t>(),
                              .weights = weights_.ref().as<float>(),
                              .scale = static_cast<float>(1 / static_cast<double>(predictions_)),
                              .next_token = next_token,
                              .divergence = next_token + tokens,
                              .gradient = teacher,
                              .tokens = tokens,
                              .width = config_.hidden_size,
                              .vocab = config_.vocab_size});
  }

  void note_losses(std::span<const std::byte> said, int64_t tokens) {
    std::vector<float> losses(static_cast<size_t>(2 * tokens));
    std::memcpy(losses.data(), said.data() + sizeof(Verdict), losses.size() * sizeof(float));
    const auto divergence = losses.begin() + tokens;
    next_token_ += std::accumulate(losses.begin(), divergence, 0.0) / static_cast<double>(predictions_);
    divergence_ += std::accumulate(divergence, losses.end(), 0.0) / static_cast<double>(predictions_);
  }

  TokenHeads all_heads(const TextGroup& group) const { return shape(group, config_.layers, config_.kv_heads); }
  TokenHeads counted(const TextGroup& group) const {
    return capacity_.is_global ? shape(group, 1, 1) : all_heads(group);
  }

  // Of soft occupancies, whose slopes take their place.
  void add_capacity(const TextGroup& group, Verdict* verdict) {
    backend_.find_bad_value({.values = {attention_.log_retention(), DType::kF32},
                             .count = all_heads(group).elements(),
                             .first = &verdict->first_bad});
    occupancy_.reserve(backend_, DType::kF32, counted(group).elements());
    occupancy_.fill_zero();
    backend_.occupancy({.shape = all_heads(group),
                        .log_beta = attention_.log_retention(),
                        .of = occupancy_of(),
                        .occupancy = occupancy_.ref().as<float>()});
    backend_.capacity_hinge({.shape = counted(group),
                             .occupancy = occupancy_.ref().as<float>(),
                             .pooled = capacity_.is_global ? int64_t{config_.layers} * config_.kv_heads : 1,
                             .capacity = capacity_.entries,
                             .mean_over = overfull_of_all_,
                             .weight = static_cast<float>(capacity_.weight),
                             .loss = &verdict->excess,
                             .overfull = &verdict->overfull,
                             .gradient = occupancy_.ref().as<float>()});
  }

  void note(const OfGroup& group, const Verdict& verdict) {
    if (verdict.first_bad != kNothingBad) {
      const auto at = static_cast<int64_t>(verdict.first_bad), heads = int64_t{config_.kv_heads};
      throw NotFiniteError(
          fmt::format("layer {}, KV head {}: log β is no finite number", at / (group.tokens * heads), at % heads));
    }
    excess_ += verdict.excess;
    own_overfull_ += verdict.overfull;
    overfull_ += group.share * verdict.overfull / static_cast<double>(group.counted);
  }

  const LearnBatch& batch_;
  Backend& backend_;
  const ForwardModel& model_;
  const ModelConfig& config_;
  RetentionAttention& attention_;
  RetentionCapacity capacity_;
  Student student_;
  int64_t own_predictions_;      // tokens here that have a next one
  int64_t predictions_;          // the same of the whole step
  Tensor targets_, weights_;     // [tokens]
  Tensor occupancy_;             // [tokens] or [layers, tokens, kv_heads], then its slopes
  int64_t overfull_of_all_ = 0;  // of a step of several groups or parts; 0: nobody has counted
  int64_t own_overfull_ = 0;
  std::vector<OfGroup> said_;
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
  deterministic_ = read_deterministic(params);
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

std::vector<LearnedMean> RetentionTraining::learn(const LearnBatch& batch, std::span<const float> parameters,
                                                  std::span<double> gradient) {
  const ForwardModel& model = model_of(batch);
  const SourceInfo& info = batch.source.info();
  RetentionGradients gradients(batch.backend, info, network_);
  RetentionAttention attention(batch.backend, model.config, network_, gradients, deterministic_);
  RetentionStep step(batch, model, attention, capacity_);
  bool has_parameters = false;
  if (!is_one_group(batch, tokens_at_once_)) {
    network_.use(batch.backend, info, parameters);
    has_parameters = true;
    for_each_group(batch, tokens_at_once_, [&](const TextGroup& group) { step.count_overfull(group); });
    step.count_overfull_of_step();
  }
  groups_.for_each(batch, tokens_at_once_, [&](const TextGroup& group, Ref teacher) {
    if (!std::exchange(has_parameters, true)) network_.use(batch.backend, info, parameters);
    step.add(group, teacher);
  });
  const std::unique_ptr<Download> slopes = gradients.begin_download();
  batch.when_asked();
  step.look();
  gradients.add_to(slopes->wait_for<float>(), gradient);
  const double said = step.divergence().value + step.next_token().value;
  if (!std::isfinite(said)) throw NotFiniteError(fmt::format("the loss of what is said is {}", said));
  return {step.divergence(), step.next_token(), step.excess(), step.overfull()};
}

}  // namespace kv
