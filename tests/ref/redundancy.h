#pragma once

#include <vector>

namespace kv::ref {

struct Redundancy {
  std::vector<int> retained;  // r(i)
  std::vector<double> mean;   // m_j
  std::vector<double> score;  // softmax of the mean
};

// R-KV's redundancy of one row with the whole n×n matrix held. `kth` = 1 retains the newest similar key, k the k-th
// newest or the oldest similar one where fewer exist.
Redundancy redundancy(const std::vector<float>& keys, int dim, double threshold, int kth);

}  // namespace kv::ref
