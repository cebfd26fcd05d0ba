#pragma once

#include <memory>
#include <span>
#include <vector>

#include "policies/parts/foresight_scorer.h"
#include "policies/parts/golden_lesson.h"
#include "sim/learned/learner.h"
#include "sim/policy/params.h"

namespace kv {

// ForesightKV's supervised stage (001, Sec. 3.2; the released train.py). Golden Eviction cuts, so that the network sees
// the caches that the oracle leaves; it rates the same entries, and where Golden's α (policies/golden.cpp) says that
// one stays before another, the pair costs max(0, margin − (y_i − y_j)). A row is an event and a KV head: the mean over
// its pairs, then over a text's rows of a layer, added up over layers and texts, as in the code. Loss, gradient and
// metric are taken at the event, so no feature outlives it.
class ForesightSupervised {
 public:
  explicit ForesightSupervised(const ForesightShape& shape);

  void read(Params& params);
  // The options that read() asks for.
  static std::vector<std::string_view> keys() { return {"margin"}; }
  static std::vector<LearnedMeasure> measures();
  // As Learner::learn, with Golden's evictions at that budget and interval. Measures hinge_loss, the sum over layers,
  // mean over texts, and evicted_overlap: of what Golden evicts, the share that the network would, mean over rows.
  std::vector<LearnedMean> learn(const LearnBatch& batch, int budget, int interval, std::span<const float> parameters,
                                 std::span<double> gradient);

 private:
  class RowLosses;

  explicit ForesightSupervised(std::unique_ptr<ForesightScorer> onlooking);

  ForesightScorer* looking_on_;  // the lesson's onlooker
  GoldenLesson lesson_;
  float margin_ = 0.01F;
};

}  // namespace kv
