#include "sim/learned/learning_rate.h"

#include <cmath>
#include <numbers>

namespace kv {

double cosine_after_warm_up(int64_t step, int64_t warm_up, int64_t steps) {
  if (step < warm_up) return static_cast<double>(step) / static_cast<double>(warm_up);
  const double done = static_cast<double>(step - warm_up) / static_cast<double>(steps - warm_up);
  return 0.5 * (1 + std::cos(std::numbers::pi * done));
}

double constant_after_warm_up(int64_t step, int64_t warm_up) {
  return step <= warm_up ? static_cast<double>(step + 1) / static_cast<double>(warm_up) : 1.0;
}

}  // namespace kv
