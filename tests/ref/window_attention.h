#pragma once

#include <vector>

namespace kv::ref {

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
