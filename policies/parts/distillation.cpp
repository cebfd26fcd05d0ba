#include "policies/parts/distillation.h"

#include <numeric>
#include <vector>

#include "kernels/hidden_distance.h"

namespace kv {

void Distillation::teach(const TextGroup& group) {
  Backend& backend = model_.backend;
  teacher_.reserve(backend, backend.activation_type(), group.block.tokens * model_.config.hidden_size);
  student_.teach(group.block, group.on_device(), teacher_.ref());
}

double Distillation::learn(const TextGroup& group, StudentAttention& attention,
                           const std::function<void()>& other_losses) {
  Backend& backend = model_.backend;
  const int64_t tokens = group.block.tokens, width = model_.config.hidden_size;
  loss_.reserve(backend, DType::kF32, tokens);
  const ConstRef states = student_.run(group.block, group.on_device(), attention);
  backend.hidden_distance({.student = states,
                           .teacher = teacher_.ref(),
                           .scale = static_cast<float>(group.share / static_cast<double>(tokens)),
                           .loss = loss_.ref().as<float>(),
                           .gradient = teacher_.ref(),
                           .tokens = tokens,
                           .width = width});
  other_losses();
  student_.backward(teacher_.ref());
  std::vector<float> loss(static_cast<size_t>(tokens));
  backend.download(loss.data(), loss_.ref().data, loss.size() * sizeof(float));
  return std::accumulate(loss.begin(), loss.end(), 0.0) / static_cast<double>(tokens);
}

}  // namespace kv
