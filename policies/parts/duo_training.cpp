#include "policies/parts/duo_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/error.h"
#include "policies/parts/distillation.h"
#include "policies/parts/text_groups.h"

namespace kv {

namespace {

// NotFiniteError names the first head whose α is no number.
void require_numbers(std::span<const float> alphas, int kv_heads) {
  const auto bad = std::find_if(alphas.begin(), alphas.end(), [](float alpha) { return !std::isfinite(alpha); });
  if (bad == alphas.end()) return;
  const auto head = bad - alphas.begin();
  throw NotFiniteError(fmt::format("layer {}, KV head {}: α is {}", head / kv_heads, head % kv_heads, *bad));
}

}  // namespace

void DuoTraining::read(Params& params) {
  lambda_ = read_lambda(params, 0.05);
  tokens_at_once_ = read_tokens_at_once(params);
  deterministic_ = read_deterministic(params);
}

TrainingOptions DuoTraining::defaults() const {
  return {.steps = 200, .batch = 1, .rate = 0.2, .warm_up_share = 0.1, .clip = 0};
}

std::vector<LearnedMeasure> DuoTraining::measures() const {
  return {{.name = "hidden_distance",
           .title = "Mean squared distance of the final hidden states from the full model's",
           .better = "lower"},
          {.name = "mean_alpha", .title = "Mean of α over the KV heads", .better = "lower"}};
}

std::map<std::string, std::string> DuoTraining::settings() const {
  return {{"sinks", std::to_string(streaming_.sinks)}, {"window", std::to_string(streaming_.window)}};
}

std::vector<float> DuoTraining::initial(const SourceInfo& info, uint64_t) const {
  return std::vector<float>(static_cast<size_t>(info.layers * info.kv_heads), 0.0F);
}

std::vector<float> DuoTraining::alphas(std::span<const float> parameters) {
  std::vector<float> alphas;
  for (const float parameter : parameters) alphas.push_back(1 / (1 + std::exp(-parameter)));
  return alphas;
}

std::vector<LearnedMean> DuoTraining::learn(const LearnBatch& batch, std::span<const float> parameters,
                                            std::span<double> gradient) {
  const ForwardModel& model = model_of(batch);
  const std::vector<float> alphas = DuoTraining::alphas(parameters);
  require_numbers(alphas, model.config.kv_heads);
  DuoAttention attention(batch.backend, model.config, streaming_, alphas, deterministic_);
  Distillation distillation(model, batch.memory);
  groups_.for_each(batch, tokens_at_once_,
                   [&](const TextGroup& group, Ref teacher) { distillation.learn(group, teacher, attention, [] {}); });
  const std::unique_ptr<Download> alpha_gradient = attention.alpha_gradient();
  batch.when_asked();
  const double distance = distillation.loss();
  if (!std::isfinite(distance)) {
    throw NotFiniteError(fmt::format("the hidden states' distance is {}", distance));
  }
  const std::span<const float> of_distance = alpha_gradient->wait_for<float>();
  const auto heads = static_cast<double>(alphas.size());
  const double share = share_of(batch);
  for (size_t i = 0; i < alphas.size(); ++i) {
    const double alpha = alphas[i];
    gradient[i] += (of_distance[i] + share * lambda_ / heads) * alpha * (1 - alpha);
  }
  return {
      {.metric = "hidden_distance", .value = distance / share, .weight = share},
      {.metric = "mean_alpha", .value = std::accumulate(alphas.begin(), alphas.end(), 0.0) / heads, .weight = share}};
}

}  // namespace kv
