#pragma once

#include <vector>

namespace kv::ref {

// Slots that one query head selects among the keys [visible, dim]: its top_k most probable ones, or (top_k = 0) the
// fewest that together reach `mass`; equal ones to the newer key. In order of selection.
std::vector<int> selected_slots(const std::vector<float>& query, const std::vector<float>& keys, int top_k, double mass,
                                double scale);

}  // namespace kv::ref
