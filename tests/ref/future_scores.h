#pragma once

#include <vector>

namespace kv::ref {

// One head: input [blocks, tokens] to [ceil(blocks / merge), tokens]; `largest` picks max over the merged blocks.
enum class Merge { kSum, kLargest };
std::vector<double> future_table(const std::vector<float>& input, int blocks, int tokens, int merge, int horizon,
                                 double scale, Merge how);

}  // namespace kv::ref
