#pragma once

#include <cstdint>
#include <span>

#include "sim/policy/allocation.h"

namespace kv {

// Divides the total of one sequence in proportion to weights [layers · kv_heads] (sim/budget/apportion.h) into its
// places of counts [layers, rows].
void divide(const AllocateArgs& args, int sequence, std::span<const double> weights, std::span<int32_t> counts);

// Gives heads with room what the counts of a sequence lack of its total, or of all that is there, an entry each in
// turn, the lower layer, then the lower head first: where a pool of heads has fewer entries than its share (an
// admission leaves them uneven).
void fill_up(const AllocateArgs& args, int sequence, std::span<int32_t> counts);

}  // namespace kv
