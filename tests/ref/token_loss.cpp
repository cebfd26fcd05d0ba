#include "tests/ref/token_loss.h"

#include <algorithm>
#include <cmath>

#include "tests/ref/softmax.h"

namespace kv::ref {

Loss token_loss(const std::vector<double>& logits, int32_t target) {
  Loss loss;
  loss.argmax = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<double> p = logits;
  softmax(p);
  for (const double value : p) {
    if (value > 0) loss.entropy -= value * std::log(value);
  }
  if (target >= 0) loss.nll = -std::log(p[static_cast<size_t>(target)]);
  return loss;
}

}  // namespace kv::ref
