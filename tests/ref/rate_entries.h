#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kv::ref {

// Parameters of one head's network, laid out as kernels/rate_entries.h has them: y = w2 · GELU(W1 x + b1) + b2.
double rate_entry(std::span<const double> parameters, std::span<const double> x, int hidden);

}  // namespace kv::ref
