#include "kernels/key_difference.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

void score_row(const KeyDifferenceArgs& args, int64_t row) {
  const int64_t length = args.cache.lengths[row];
  const int64_t dim = args.cache.head_dim;
  const float* pool = args.cache.keys.as<float>();
  float* scores = args.scores.row(row);
  const auto for_keys = [&](const auto& visit) {
    for_page_runs(args.cache, row, 0, length, [&](int64_t page, int64_t place, int64_t done, int64_t run) {
      for (int64_t i = 0; i < run; ++i) visit(done + i, pool + (page * kPageTokens + place + i) * dim);
    });
  };

  // Summed in double: the anchor of thousands of keys is a mean in which opposite directions cancel.
  std::vector<double> sum(dim);
  std::vector<float> inverse_norms(length), anchor(dim);
  for_keys([&](int64_t slot, const float* key) {
    const double square = dot<double>(key, key, dim);
    const double inverse = square > 0 ? 1 / std::sqrt(square) : 0;
    inverse_norms[slot] = static_cast<float>(inverse);
    double* to = sum.data();
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) to[d] += key[d] * inverse;
  });
  // The anchor's length cancels in the cosine, so the sum of unit keys, made a unit vector, serves as their mean.
  double square = 0;
  for (const double x : sum) square += x * x;
  const double inverse = square > 0 ? 1 / std::sqrt(square) : 0;
  for (int64_t d = 0; d < dim; ++d) anchor[d] = static_cast<float>(sum[d] * inverse);
  for_keys([&](int64_t slot, const float* key) { scores[slot] = -dot(key, anchor.data(), dim) * inverse_norms[slot]; });
}

}  // namespace

void key_difference(const KeyDifferenceArgs& args) {
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (!args.rows_due || args.rows_due[row]) score_row(args, row);
  });
}

}  // namespace kv::cpu
