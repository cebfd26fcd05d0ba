#include "tests/ref/naive_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ref/softmax.h"

namespace kv::ref {

Probabilities probabilities(const std::vector<float>& queries, const std::vector<float>& keys, int tokens, int q_heads,
                            int kv_heads, int dim, int head) {
  const int kv_head = head / (q_heads / kv_heads);
  Probabilities a(static_cast<size_t>(tokens));
  for (int i = 0; i < tokens; ++i) {
    auto& row = a[static_cast<size_t>(i)];
    for (int j = 0; j <= i; ++j) {
      double dot = 0;
      const float* query = queries.data() + static_cast<int64_t>(i * q_heads + head) * dim;
      const float* key = keys.data() + static_cast<int64_t>(j * kv_heads + kv_head) * dim;
      for (int d = 0; d < dim; ++d) dot += static_cast<double>(query[d]) * key[d];
      row.push_back(dot / std::sqrt(static_cast<double>(dim)));
    }
    softmax(row);
  }
  return a;
}

std::vector<double> future_max(const Probabilities& a, int first_query, int queries) {
  std::vector<double> largest(static_cast<size_t>(first_query), 0);
  const size_t end = queries == 0 ? a.size() : std::min(a.size(), static_cast<size_t>(first_query + queries));
  for (size_t i = static_cast<size_t>(first_query); i < end; ++i) {
    for (size_t j = 0; j < largest.size(); ++j) largest[j] = std::max(largest[j], a[i][j]);
  }
  return largest;
}

Shares shares(const std::vector<double>& importance, const std::vector<int32_t>& candidates,
              const std::vector<int32_t>& kept) {
  Shares found;
  const auto of = [&](int32_t j) { return importance[static_cast<size_t>(j)]; };
  const auto is_in = [](const auto& set, int32_t j) { return std::find(set.begin(), set.end(), j) != set.end(); };
  std::vector<int32_t> best = candidates;
  std::sort(best.begin(), best.end(), [&](int32_t a, int32_t b) { return of(a) > of(b); });
  best.resize(kept.size());
  for (const int32_t j : candidates) found.total += of(j);
  for (const int32_t j : best) {
    found.best += of(j);
    if (!is_in(kept, j)) found.missed += of(j);
  }
  for (const int32_t j : kept) {
    found.kept += of(j);
    if (is_in(best, j)) {
      ++found.hits;
    } else {
      found.false_positives += of(j);
    }
  }
  return found;
}

double survival(const Probabilities& a, int top_k, double mass, int delta) {
  std::vector<int> life(a.size(), 0);
  for (size_t t = 0; t < a.size(); ++t) {
    std::vector<size_t> order(t + 1);
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t x, size_t y) { return a[t][x] != a[t][y] ? a[t][x] > a[t][y] : x > y; });
    double sum = 0;
    for (size_t n = 0; n < order.size(); ++n) {
      if (top_k > 0 ? n == static_cast<size_t>(top_k) : sum >= mass) break;
      sum += a[t][order[n]];
      life[order[n]] = std::max(life[order[n]], static_cast<int>(t - order[n]));
    }
  }
  const auto long_lived = std::count_if(life.begin(), life.end(), [&](int age) { return age >= delta; });
  return static_cast<double>(long_lived) / (static_cast<double>(a.size()) - delta);
}

}  // namespace kv::ref
