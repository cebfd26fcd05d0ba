#pragma once

#include <vector>

namespace kv::ref {

// LagKV's scores of one row (kernels/lag_relative.h, Scale::kShare), keys and values [n · dim].
std::vector<double> lag_shares(const std::vector<float>& keys, const std::vector<float>& values, int dim, int sinks,
                               int lag);

// The same in Scale::kRank.
std::vector<double> lag_ranks(const std::vector<float>& keys, const std::vector<float>& values, int dim, int sinks,
                              int lag);

}  // namespace kv::ref
