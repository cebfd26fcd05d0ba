#include "tests/ref/survival.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "tests/ref/softmax.h"

namespace kv::ref {

std::vector<int> selected_slots(const std::vector<float>& query, const std::vector<float>& keys, int top_k, double mass,
                                double scale) {
  const size_t dim = query.size(), n = keys.size() / dim;
  std::vector<double> p(n);
  for (size_t j = 0; j < n; ++j) {
    for (size_t d = 0; d < dim; ++d) p[j] += scale * query[d] * keys[j * dim + d];
  }
  softmax(p);
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return p[a] != p[b] ? p[a] > p[b] : a > b; });
  size_t taken = std::min<size_t>(n, top_k);
  if (top_k == 0) {
    double sum = 0;
    while (taken < n && sum < mass) sum += p[order[taken++]];
  }
  order.resize(taken);
  return order;
}

}  // namespace kv::ref
