#pragma once

#include <vector>

#include "kernels/paged.h"
#include "tests/ref/paged_cache.h"

namespace kv::ref {

struct Attended {
  std::vector<double> output;      // [tokens, q_heads, head_dim]
  std::vector<double> sums;        // [rows, group, pitch]; NaN where attend leaves its output untouched
  std::vector<double> maxima;      // [rows, group, pitch]; likewise
  double largest_logit_terms = 0;  // largest scale · Σ |q_d k_d|: what rounding errors of a logit grow with
};

Attended attend(const CacheRows& rows, const std::vector<float>& queries, const std::vector<Segment>& segments,
                int q_heads, double scale, int64_t pitch);

}  // namespace kv::ref
