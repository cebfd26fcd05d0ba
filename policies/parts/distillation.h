#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/tensor.h"
#include "policies/parts/text_groups.h"
#include "sim/learned/student.h"

namespace kv {

// Teaches a student's attention what its model says without it: the loss is the mean over all elements of the squared
// distance of the final hidden states, after the last norm (004, Sec. 3.3, as the released code takes it; DuoAttention
// does likewise).
class Distillation {
 public:
  // `lent` is the student's memory.
  explicit Distillation(const ForwardModel& model, Tensor* lent = nullptr) : model_(model), student_(model, lent) {}

  // Runs the student over a group of which the teacher says [tokens, hidden], which is written over, and goes back, so
  // that the attention has its gradients of `group.share` times the group's loss. Once the student has run,
  // `other_losses` may add to gradients, by ops alone: what waits for results there leaves the device without work.
  void learn(const TextGroup& group, Ref teacher, StudentAttention& attention,
             const std::function<void()>& other_losses);
  // The loss of all groups together, each by its share, for which it waits.
  double loss() const;

 private:
  struct OfGroup {
    double share = 0;
    std::unique_ptr<Download> losses;  // [tokens]
  };

  const ForwardModel& model_;
  Student student_;
  Tensor losses_;  // [tokens], of the last group
  std::vector<OfGroup> groups_;
};

}  // namespace kv
