#include "policies/parts/distillation.h"

#include <numeric>
#include <span>

#include "kernels/hidden_distance.h"

namespace kv {

void Distillation::learn(const TextGroup& group, Ref teacher, StudentAttention& attention,
                         const std::function<void()>& other_losses) {
  Backend& backend = model_.backend;
  const int64_t tokens = group.block.tokens, width = model_.config.hidden_size;
  losses_.reserve(backend, DType::kF32, tokens);
  const ConstRef states = student_.run(group.block, group.on_device(), attention);
  backend.hidden_distance({.student = states,
                           .teacher = teacher,
                           .scale = static_cast<float>(group.share / static_cast<double>(tokens)),
                           .loss = losses_.ref().as<float>(),
                           .gradient = teacher,
                           .tokens = tokens,
                           .width = width});
  other_losses();
  student_.backward(teacher);
  groups_.push_back(
      {.share = group.share,
       .losses = backend.begin_download(losses_.ref().data, static_cast<size_t>(tokens) * sizeof(float))});
}

double Distillation::loss() const {
  double sum = 0;
  for (const OfGroup& group : groups_) {
    const std::span<const float> losses = group.losses->wait_for<float>();
    sum += group.share * (std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size()));
  }
  return sum;
}

}  // namespace kv
