#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

// input [tokens, heads, 2 · inv_freq.size()]. The angle is the f32 product of the contract, the rest double.
std::vector<double> rope(const std::vector<float>& input, const std::vector<int32_t>& positions,
                         const std::vector<float>& inv_freq, int heads, double attention_factor);

// The gradient of rope's input, of its output's.
std::vector<double> rope_backward(const std::vector<float>& output_gradient, const std::vector<int32_t>& positions,
                                  const std::vector<float>& inv_freq, int heads, double attention_factor);

}  // namespace kv::ref
