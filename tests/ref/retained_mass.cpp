#include "tests/ref/retained_mass.h"

#include <cmath>
#include <cstddef>

#include "tests/ref/softmax.h"

namespace kv::ref {

RetainedMass retained_mass(const std::vector<float>& query, const std::vector<float>& keys,
                           const std::vector<float>& values, const std::vector<uint8_t>& keep, double scale) {
  const size_t dim = query.size(), count = keep.size();
  std::vector<double> p(count), full(dim), kept(dim);
  for (size_t j = 0; j < count; ++j) {
    for (size_t d = 0; d < dim; ++d) p[j] += scale * query[d] * keys[j * dim + d];
  }
  softmax(p);
  double mass = 0;
  RetainedMass out;
  for (size_t j = 0; j < count; ++j) {
    (keep[j] ? mass : out.evicted) += p[j];
    for (size_t d = 0; d < dim; ++d) {
      full[d] += p[j] * values[j * dim + d];
      if (keep[j]) kept[d] += p[j] * values[j * dim + d];
    }
  }
  double square = 0, dot = 0, full_square = 0, kept_square = 0;
  for (size_t d = 0; d < dim; ++d) {
    if (mass > 0) kept[d] /= mass;
    square += (full[d] - kept[d]) * (full[d] - kept[d]);
    dot += full[d] * kept[d];
    full_square += full[d] * full[d];
    kept_square += kept[d] * kept[d];
  }
  out.error = std::sqrt(square);
  out.cosine = full_square > 0 && kept_square > 0 ? dot / std::sqrt(full_square * kept_square) : 0;
  return out;
}

}  // namespace kv::ref
