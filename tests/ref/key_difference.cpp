#include "tests/ref/key_difference.h"

#include <cmath>

namespace kv::ref {

std::vector<double> key_difference(const std::vector<float>& keys, int dim) {
  const int n = static_cast<int>(keys.size()) / dim;
  std::vector<double> norms(n), anchor(dim), out(n);
  for (int j = 0; j < n; ++j) {
    for (int d = 0; d < dim; ++d) norms[j] += double(keys[j * dim + d]) * keys[j * dim + d];
    norms[j] = std::sqrt(norms[j]);
    for (int d = 0; d < dim && norms[j] > 0; ++d) anchor[d] += keys[j * dim + d] / norms[j] / n;
  }
  double square = 0;
  for (double a : anchor) square += a * a;
  for (int j = 0; j < n; ++j) {
    double dot = 0;
    for (int d = 0; d < dim; ++d) dot += keys[j * dim + d] * anchor[d];
    out[j] = dot == 0 ? 0 : -dot / (norms[j] * std::sqrt(square));
  }
  return out;
}

}  // namespace kv::ref
