#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

// The sums that the newest `suffix` queries give, [group][slot]; the i-th query stands at newest − (window − 1 − i) and
// sees no slot with expires <= that (empty: all). Older queries of the window are not looked at.
std::vector<std::vector<double>> window_attention_suffix(const std::vector<float>& queries,
                                                         const std::vector<float>& keys, int window, int suffix,
                                                         int group, int dim, double scale,
                                                         const std::vector<int32_t>& expires, int32_t newest);

// One row, straight from the definition. queries [window, group, dim], keys [length, dim].
// per head: [group][length]; group_max and group_max_probability: [length - window].
std::vector<std::vector<double>> window_attention_per_head(const std::vector<float>& queries,
                                                           const std::vector<float>& keys, int window, int group,
                                                           int dim, double scale);
std::vector<double> window_attention_group_max(const std::vector<float>& queries, const std::vector<float>& keys,
                                               int window, int group, int dim, double scale);
std::vector<double> window_attention_group_max_probability(const std::vector<float>& queries,
                                                           const std::vector<float>& keys, int window, int group,
                                                           int dim, double scale);

}  // namespace kv::ref
