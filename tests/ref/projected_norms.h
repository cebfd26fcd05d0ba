#pragma once

#include <vector>

namespace kv::ref {

// ‖v W_O^(h)‖₂ for one value vector: head `head` of output_weight [width, heads · dim].
double projected_norm(const std::vector<float>& value, const std::vector<float>& output_weight, int head, int heads);

}  // namespace kv::ref
