#include "tests/ref/layer_mean.h"

#include <map>

namespace kv::ref {

std::vector<std::vector<double>> layer_mean(const CacheRows& cache, const std::vector<float>& input, int group,
                                            int64_t pitch) {
  std::vector<std::vector<double>> out;
  for (int64_t first = 0; first < cache.rows(); first += cache.kv_heads) {
    std::map<int32_t, double> sums;  // by position
    for (int64_t row = first; row < first + cache.kv_heads; ++row) {
      for (int64_t slot = 0; slot < cache.length(row); ++slot) {
        double& sum = sums[cache.positions[size_t(row)][size_t(slot)]];
        for (int g = 0; g < group; ++g) sum += input[size_t((row * group + g) * pitch + slot)];
      }
    }
    for (int64_t row = first; row < first + cache.kv_heads; ++row) {
      out.emplace_back();
      for (const int32_t position : cache.positions[size_t(row)]) {
        out.back().push_back(sums[position] / (cache.kv_heads * group));
      }
    }
  }
  return out;
}

}  // namespace kv::ref
