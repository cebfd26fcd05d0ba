#pragma once

#include <cstdint>
#include <span>

namespace kv {

// Where the texts of a step are divided, each part learns from its own at the same time as the others.
class StepParts {
 public:
  virtual ~StepParts() = default;
  // Collective: by all parts, as often and with as many values. Each value becomes the sum of all parts', added in
  // their order.
  virtual void add_up(std::span<double> values) = 0;
};

// The texts that one part learns from, among those of its step.
struct StepPart {
  StepParts& all;
  int64_t first_text = 0;  // how many texts the parts before it have
  int64_t step_texts = 0;
  int64_t step_tokens = 0;
};

}  // namespace kv
