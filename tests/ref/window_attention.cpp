#include "tests/ref/window_attention.h"

#include <algorithm>
#include <cmath>

#include "tests/ref/softmax.h"

namespace kv::ref {

namespace {

double logit(const std::vector<float>& queries, const std::vector<float>& keys, int query, int slot, int dim,
             double scale) {
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += double(queries[query * dim + d]) * keys[slot * dim + d];
  return sum * scale;
}

}  // namespace

std::vector<std::vector<double>> window_attention_per_head(const std::vector<float>& queries,
                                                           const std::vector<float>& keys, int window, int group,
                                                           int dim, double scale) {
  const int length = static_cast<int>(keys.size()) / dim;
  std::vector<std::vector<double>> scores(group, std::vector<double>(length));
  for (int i = 0; i < window; ++i) {
    for (int g = 0; g < group; ++g) {
      std::vector<double> p;
      for (int j = 0; j <= length - window + i; ++j) p.push_back(logit(queries, keys, i * group + g, j, dim, scale));
      softmax(p);
      for (size_t j = 0; j < p.size(); ++j) scores[g][j] += p[j] / window;
    }
  }
  return scores;
}

std::vector<std::vector<double>> window_attention_suffix(const std::vector<float>& queries,
                                                         const std::vector<float>& keys, int window, int suffix,
                                                         int group, int dim, double scale,
                                                         const std::vector<int32_t>& expires, int32_t newest) {
  const int length = static_cast<int>(keys.size()) / dim;
  std::vector<std::vector<double>> scores(group, std::vector<double>(length));
  for (int i = window - suffix; i < window; ++i) {
    for (int g = 0; g < group; ++g) {
      std::vector<double> p;
      for (int j = 0; j <= length - window + i; ++j) {
        const bool is_seen = expires.empty() || expires[j] > newest - (window - 1 - i);
        p.push_back(is_seen ? logit(queries, keys, i * group + g, j, dim, scale) : -INFINITY);
      }
      softmax(p);
      for (size_t j = 0; j < p.size(); ++j) scores[g][j] += p[j];
    }
  }
  return scores;
}

std::vector<double> window_attention_group_max(const std::vector<float>& queries, const std::vector<float>& keys,
                                               int window, int group, int dim, double scale) {
  const int older = static_cast<int>(keys.size()) / dim - window;
  std::vector<double> scores(older);
  for (int i = 0; i < window; ++i) {
    std::vector<double> p(older, -INFINITY);
    for (int j = 0; j < older; ++j) {
      for (int g = 0; g < group; ++g) p[j] = std::max(p[j], logit(queries, keys, i * group + g, j, dim, scale));
    }
    softmax(p);
    for (int j = 0; j < older; ++j) scores[j] += p[j] / window;
  }
  return scores;
}

std::vector<double> window_attention_group_max_probability(const std::vector<float>& queries,
                                                           const std::vector<float>& keys, int window, int group,
                                                           int dim, double scale) {
  const int older = static_cast<int>(keys.size()) / dim - window;
  std::vector<double> scores(older);
  for (int i = 0; i < window; ++i) {
    std::vector<double> most(older, 0.0);
    for (int g = 0; g < group; ++g) {
      std::vector<double> p(older);
      for (int j = 0; j < older; ++j) p[j] = logit(queries, keys, i * group + g, j, dim, scale);
      softmax(p);
      for (int j = 0; j < older; ++j) most[j] = std::max(most[j], p[j]);
    }
    for (int j = 0; j < older; ++j) scores[j] += most[j] / window;
  }
  return scores;
}

}  // namespace kv::ref
