#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

struct ExpectedAttentionCase {
  int dim = 0;
  int future = 512;
  int sinks = 4;
  double epsilon = 0.02;
  int next_position = 0;
  bool use_covariance = true;
  std::vector<float> inv_freq;
};

// One row. queries: per query head of the group, the pre-RoPE queries [count, dim] the moments are taken over.
// The average rotation is built as a dense matrix, position by position, and the covariance from centred queries.
std::vector<double> expected_attention(const ExpectedAttentionCase& c, const std::vector<std::vector<float>>& queries,
                                       const std::vector<float>& keys, const std::vector<float>& values,
                                       const std::vector<int32_t>& positions);

// The half-split rotation of one position as a dense [dim, dim] matrix.
std::vector<double> rotation(int position, const std::vector<float>& inv_freq);

}  // namespace kv::ref
