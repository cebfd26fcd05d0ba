#pragma once

#include <cstdint>

namespace kv {

// How the next token is chosen (kernels/sample.h): temperature, then top-k, then top-p.
struct Sampling {
  float temperature = 0;  // 0 = greedy
  int top_k = 0;          // 0 = all
  float top_p = 1;        // 1 = all
  uint64_t seed = 0;
};

// UserError for parameters outside their range.
void check_sampling(const Sampling& sampling);

}  // namespace kv
