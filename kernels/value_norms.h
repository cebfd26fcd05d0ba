#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// scores[row, slot] = weights[row, slot] · ‖v_slot‖₂, slots [0, length) of the rows that are due; without weights the
// norm alone. `scores` may be `weights`. With attention as weights: how much of an entry reaches its head's output.
struct ValueNormsArgs {
  PagedView cache;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all
  Slots<const float> weights;         // or none
  Slots<float> scores;
};

namespace cpu {
void value_norms(const ValueNormsArgs& args);
}
namespace cuda {
void value_norms(const ValueNormsArgs& args);
}

}  // namespace kv
