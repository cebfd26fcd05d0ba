#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// KeyDiff: anchor = mean_j k_j/‖k_j‖ of the row; scores[row, slot] = −cos(k_slot, anchor).
struct KeyDifferenceArgs {
  PagedView cache;
  const uint8_t* rows_due = nullptr;
  Slots<float> scores;
};

namespace cpu {
void key_difference(const KeyDifferenceArgs& args);
}
namespace cuda {
void key_difference(const KeyDifferenceArgs& args);
}

}  // namespace kv
