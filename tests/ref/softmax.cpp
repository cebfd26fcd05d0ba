#include "tests/ref/softmax.h"

#include <algorithm>
#include <cmath>

namespace kv::ref {

void softmax(std::vector<double>& values) {
  if (values.empty()) return;
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (double& value : values) sum += value = std::exp(value - largest);
  for (double& value : values) value /= sum;
}

}  // namespace kv::ref
