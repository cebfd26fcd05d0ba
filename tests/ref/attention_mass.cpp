#include "tests/ref/attention_mass.h"

#include <algorithm>
#include <cstddef>

#include "tests/ref/softmax.h"

namespace kv::ref {

double attention_mass(const std::vector<float>& query, const std::vector<float>& keys,
                      const std::vector<int32_t>& positions, int query_position, const std::vector<int32_t>& set,
                      double scale) {
  const size_t dim = query.size();
  std::vector<double> p;
  for (size_t j = 0; j < positions.size() && positions[j] <= query_position; ++j) {
    double dot = 0;
    for (size_t d = 0; d < dim; ++d) dot += double(query[d]) * keys[j * dim + d];
    p.push_back(dot * scale);
  }
  softmax(p);
  double mass = 0;
  for (size_t j = 0; j < p.size(); ++j) {
    if (std::count(set.begin(), set.end(), positions[j])) mass += p[j];
  }
  return mass;
}

}  // namespace kv::ref
