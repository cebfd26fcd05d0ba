#include "tests/ref/projected_norms.h"

#include <cmath>
#include <cstddef>

namespace kv::ref {

double projected_norm(const std::vector<float>& value, const std::vector<float>& output_weight, int head, int heads) {
  const size_t dim = value.size(), width = output_weight.size() / (heads * dim);
  double square = 0;
  for (size_t c = 0; c < width; ++c) {
    double dot = 0;
    for (size_t d = 0; d < dim; ++d) dot += double(value[d]) * output_weight[(c * heads + head) * dim + d];
    square += dot * dot;
  }
  return std::sqrt(square);
}

}  // namespace kv::ref
