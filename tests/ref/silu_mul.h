#pragma once

#include <cmath>

namespace kv::ref {

inline double silu_mul(double gate, double up) { return gate / (1 + std::exp(-gate)) * up; }

}  // namespace kv::ref
