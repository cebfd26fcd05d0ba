#include "policies/parts/distillation.h"

#include <numeric>
#include <vector>

#include "kernels/hidden_distance.h"

namespace kv {

double Distillation::learn(const TextGroup& group, Ref teacher, StudentAttention& attention,
                           const std::function<void()>& other_losses) {
  Backend& backend = model_.backend;
  const int64_t tokens = group.block.tokens, width = model_.config.hidden_size;
  loss_.reserve(backend, DType::kF32, tokens);
  const ConstRef states = student_.run(group.block, group.on_device(), attention);
  backend.hidden_distance({.student = states,
                           .teacher = teacher,
                           .scale = static_cast<float>(group.share / static_cast<double>(tokens)),
                           .loss = loss_.ref().as<float>(),
                           .gradient = teacher,
                           .tokens = tokens,
                           .width = width});
  other_losses();
  student_.backward(teacher);
  std::vector<float> loss(static_cast<size_t>(tokens));
  backend.download(loss.data(), loss_.ref().data, loss.size() * sizeof(float));
  return std::accumulate(loss.begin(), loss.end(), 0.0) / static_cast<double>(tokens);
}

}  // namespace kv
