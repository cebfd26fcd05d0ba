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

// Of a step's texts, in their order, those of a rank: as many as any other has, or one more.
std::vector<int> texts_of_rank(const std::vector<int>& texts, const Ranks& ranks);
// How many texts the ranks before it have.
int64_t first_text_of_rank(int64_t texts, const Ranks& ranks);

}  // namespace kv
