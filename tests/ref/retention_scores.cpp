#include "tests/ref/retention_scores.h"

#include <cmath>

namespace kv::ref {

double retention_score(double log_retention, double age, int horizon) {
  const long double step = log_retention;
  long double sum = 0;  // of what lies β^age behind
  for (int h = 0; h < horizon; ++h) sum += std::exp(step * h);
  return static_cast<double>(step * age + std::log(sum));
}

}  // namespace kv::ref
