#include "tests/ref/blend.h"

#include <cstddef>

namespace kv::ref {

std::vector<double> blend(const std::vector<float>& a, const std::vector<float>& b, double weight_a, double weight_b) {
  std::vector<double> out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = weight_a * a[i] + weight_b * b[i];
  return out;
}

}  // namespace kv::ref
