#pragma once

#include <vector>

#include "tests/support/paged_cache.h"

namespace kv::ref {

// The means by row and slot; input [rows, group, pitch] as in kernels/layer_mean.h.
std::vector<std::vector<double>> layer_mean(const CacheRows& cache, const std::vector<float>& input, int group,
                                            int64_t pitch);

}  // namespace kv::ref
