#include "tests/ref/redundancy.h"

#include <algorithm>
#include <cmath>

#include "tests/ref/softmax.h"

namespace kv::ref {

Redundancy redundancy(const std::vector<float>& keys, int dim, double threshold, int kth) {
  const int n = static_cast<int>(keys.size()) / dim;
  std::vector<double> unit(keys.begin(), keys.end());
  for (int i = 0; i < n; ++i) {
    double square = 0;
    for (int d = 0; d < dim; ++d) square += unit[i * dim + d] * unit[i * dim + d];
    for (int d = 0; d < dim; ++d) unit[i * dim + d] /= std::sqrt(square) + 1e-8;
  }
  std::vector<std::vector<double>> similarity(n, std::vector<double>(n));
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      for (int d = 0; d < dim && i != j; ++d) similarity[i][j] += unit[i * dim + d] * unit[j * dim + d];
    }
  }
  Redundancy out{.retained = std::vector<int>(n), .mean = std::vector<double>(n), .score = {}};
  for (int i = 0; i < n; ++i) {
    std::vector<int> similar;
    for (int j = n - 1; j >= 0; --j) {
      if (similarity[i][j] > threshold) similar.push_back(j);
    }
    if (!similar.empty()) out.retained[i] = similar[std::min<size_t>(kth, similar.size()) - 1];
    similarity[i][out.retained[i]] = 0;
  }
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < n; ++i) out.mean[j] += similarity[i][j] / n;
  }
  out.score = out.mean;
  softmax(out.score);
  return out;
}

}  // namespace kv::ref
