#pragma once

#include <vector>

namespace kv::ref {

// Probability of each token after temperature, top-k and top-p (kernels/sample.h), by sorting, in double.
std::vector<double> sample_probabilities(const std::vector<float>& logits, double temperature, int top_k, double top_p);

}  // namespace kv::ref
