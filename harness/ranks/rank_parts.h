#pragma once

#include <vector>

#include "harness/ranks/ranks.h"
#include "sim/learned/step_part.h"

namespace kv {

// Ranks that learn from a step's texts together. Where one of them fails (agree() of what it does), the sum that the
// others wait for ends them, too.
class RankParts final : public StepParts {
 public:
  explicit RankParts(Ranks& ranks) : ranks_(ranks) {}
  void add_up(std::span<double> values) override;

 private:
  Ranks& ranks_;
};

// Which of a step's texts a rank learns from, by their place: as many as any other does, or one more.
struct TextRange {
  int64_t first = 0, end = 0;
};
TextRange texts_of_rank(int64_t texts, const Ranks& ranks);
std::vector<int> texts_of_rank(const std::vector<int>& texts, const Ranks& ranks);

}  // namespace kv
