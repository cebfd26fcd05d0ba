#include "kernels/value_norms.h"

#include <cmath>

#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

void value_norms(const ValueNormsArgs& args) {
  const PagedView& cache = args.cache;
  const float* pool = cache.values.as<float>();
  parallel_for(cache.rows, [&](int64_t row) {
    if (args.rows_due && !args.rows_due[row]) return;
    for (int64_t slot = 0; slot < cache.lengths[row]; ++slot) {
      const float* value = pool + pool_index(cache, row, slot) * cache.head_dim;
      const float weight = args.weights ? args.weights.row(row)[slot] : 1.0F;
      args.scores.row(row)[slot] = weight * std::sqrt(dot(value, value, cache.head_dim));
    }
  });
}

}  // namespace kv::cpu
