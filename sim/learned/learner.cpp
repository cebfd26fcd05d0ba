#include "sim/learned/learner.h"

namespace kv {

int64_t LearnedPart::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

int64_t elements_of(std::span<const LearnedPart> parts) {
  int64_t count = 0;
  for (const LearnedPart& part : parts) count += part.elements();
  return count;
}

}  // namespace kv
