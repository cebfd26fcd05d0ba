#include "tests/ref/expected_attention.h"

#include <algorithm>
#include <cmath>

#include "tests/ref/softmax.h"

namespace kv::ref {

std::vector<double> rotation(int position, const std::vector<float>& inv_freq) {
  const int half = static_cast<int>(inv_freq.size()), dim = 2 * half;
  std::vector<double> matrix(dim * dim);
  for (int d = 0; d < half; ++d) {
    const double angle = static_cast<float>(position) * inv_freq[d];
    matrix[d * dim + d] = matrix[(d + half) * dim + d + half] = std::cos(angle);
    matrix[d * dim + d + half] = -std::sin(angle);
    matrix[(d + half) * dim + d] = std::sin(angle);
  }
  return matrix;
}

std::vector<double> expected_attention(const ExpectedAttentionCase& c, const std::vector<std::vector<float>>& queries,
                                       const std::vector<float>& keys, const std::vector<float>& values,
                                       const std::vector<int32_t>& positions) {
  const int dim = c.dim, n = static_cast<int>(positions.size());
  std::vector<double> turn(dim * dim);
  for (int p = c.next_position; p < c.next_position + c.future; ++p) {
    const std::vector<double> rotated = rotation(p, c.inv_freq);
    for (int i = 0; i < dim * dim; ++i) turn[i] += rotated[i] / c.future;
  }
  const int first = static_cast<int>(
      std::find_if(positions.begin(), positions.end(), [&](int32_t p) { return p >= c.sinks; }) - positions.begin());
  std::vector<double> scores(n);
  for (const std::vector<float>& head : queries) {
    const int count = static_cast<int>(head.size()) / dim;
    std::vector<double> mean(dim), turned(dim);
    for (int t = 0; t < count; ++t) {
      for (int d = 0; d < dim; ++d) mean[d] += double(head[t * dim + d]) / count;
    }
    for (int a = 0; a < dim; ++a) {
      for (int b = 0; b < dim; ++b) turned[a] += turn[a * dim + b] * mean[b];
    }
    std::vector<double> logits;
    for (int j = first; j < n; ++j) {
      double logit = 0;
      for (int d = 0; d < dim; ++d) logit += keys[j * dim + d] * turned[d];
      logit /= std::sqrt(double(dim));
      if (c.use_covariance) {
        // kᵀ R̄ Σ R̄ᵀ k = mean over queries of ((R̄ᵀk)·(q − μ))².
        std::vector<double> back(dim);
        for (int a = 0; a < dim; ++a) {
          for (int b = 0; b < dim; ++b) back[b] += turn[a * dim + b] * keys[j * dim + a];
        }
        double variance = 0;
        for (int t = 0; t < count; ++t) {
          double dot = 0;
          for (int d = 0; d < dim; ++d) dot += back[d] * (head[t * dim + d] - mean[d]);
          variance += dot * dot / count;
        }
        logit += variance / (2.0 * dim);
      }
      logits.push_back(logit);
    }
    softmax(logits);
    for (int j = first; j < n; ++j) scores[j] += logits[j - first] / double(queries.size());
  }
  double largest = 0;
  for (int j = first; j < n; ++j) {
    double square = 0;
    for (int d = 0; d < dim; ++d) square += double(values[j * dim + d]) * values[j * dim + d];
    scores[j] = (scores[j] + c.epsilon) * std::sqrt(square);
    largest = std::max(largest, scores[j]);
  }
  for (int j = 0; j < first; ++j) scores[j] = largest + 1;
  return scores;
}

}  // namespace kv::ref
