#pragma once

#include <cstdint>

#include "kernels/paged.h"

namespace kv::cuda {

// Of the due rows: inverse_norms[row, slot] = 1 / (‖k‖ + guard), 0 where that is not finite, and sums[row, :] =
// Σ_slot k · inverse_norm. All in double: the sum of thousands of keys is one in which opposite directions cancel.
struct UnitKeys {
  PagedView cache;
  const uint8_t* rows_due = nullptr;
  double guard = 0;
  double* inverse_norms = nullptr;  // [rows, max_length]
  double* sums = nullptr;           // [rows, head_dim]
};
void sum_unit_keys(const UnitKeys& args);

}  // namespace kv::cuda
