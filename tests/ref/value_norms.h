#pragma once

#include <vector>

namespace kv::ref {

// weights[j] · ‖v_j‖₂ of one row; empty weights: 1.
std::vector<double> value_norms(const std::vector<float>& values, int dim, const std::vector<float>& weights);

}  // namespace kv::ref
