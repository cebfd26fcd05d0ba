#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/tensor.h"
#include "policies/parts/text_groups.h"
#include "sim/learned/learner.h"

namespace kv {

// Groups of a step's texts with what the full model says of each, which does not depend on what is learned: that of a
// step's first group may be asked for while the step before it still ends.
class TaughtGroups {
 public:
  // Learner::begin_next, for those who learn from a teacher.
  void begin_next(const LearnBatch& next, int64_t tokens_at_once);
  // for_each_group, with the states after the final norm, [tokens, hidden], which may be written over. On a device the
  // teacher may not have ended yet: the host is free for what the student needs.
  void for_each(const LearnBatch& batch, int64_t tokens_at_once,
                const std::function<void(const TextGroup&, Ref states)>& visit);

 private:
  void teach(const LearnBatch& batch, const TextGroup& group);
  // The first group of that batch, where begin_next() taught it.
  std::optional<TextGroup> begun(const LearnBatch& batch);

  struct Begun {
    const ForwardModel* model = nullptr;
    int64_t step = 0;
    std::vector<int32_t> sample_numbers;
    TextGroup group;
  };
  std::optional<Begun> begun_;
  Tensor states_;
};

}  // namespace kv
