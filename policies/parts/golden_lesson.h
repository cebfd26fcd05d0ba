#pragma once

#include "sim/learned/learner.h"
#include "sim/policy/observer.h"
#include "sim/policy/policy.h"

namespace kv {

// What a supervised stage learns from: Golden Eviction cuts the texts of a batch at that budget, a multiple of the
// interval, and a policy that learns looks on. `observer` sees every event just before the cut, with Golden's scores
// (high stays) and, as the first of its onlookers, the learning policy's; loss and gradient are taken there.
class GoldenLesson {
 public:
  explicit GoldenLesson(Policy onlooker);

  // UserError where Golden cannot cut so.
  void teach(const LearnBatch& batch, int budget, int interval, Observer& observer);

 private:
  Policy golden_, onlooker_;
};

}  // namespace kv
