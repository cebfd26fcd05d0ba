#pragma once

#include <Eigen/Core>

// Eigen for the host's dense algebra in double. In f32 the product of panel.h is the faster one at the shapes that
// occur here (tests/bench/dense_bench.cpp times both).
//
// Results may depend on neither threads nor machine. The build turns Eigen's threading off (EIGEN_DONT_PARALLELIZE):
// parallel_for splits the work. And Eigen cuts its products, so their sums, by the caches that it finds: here by those
// of a common server.

namespace kv::cpu {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

inline const bool kHasFixedBlocks = [] {
  Eigen::setCpuCacheSizes(32 * 1024, 1024 * 1024, 32 * 1024 * 1024);
  return true;
}();

}  // namespace kv::cpu
