#pragma once

#include <cstdint>

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// How many entries of a row stay where scores below a threshold leave (kernels/select_top.h says what is protected):
//   counts[row] = #{slots of [0, length): protected, or scores[slot] >= threshold}.
// Rows that are not due are not written. A score that is no number is below any threshold.
struct CountAtLeastArgs {
  PagedView cache;
  Slots<const float> scores;  // slots of protected entries are not read
  float threshold = 0;
  int32_t sinks = 0;
  int32_t recent = 0;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all
  int32_t* counts = nullptr;          // [rows]
};

namespace cpu {
void count_at_least(const CountAtLeastArgs& args);
}
namespace cuda {
void count_at_least(const CountAtLeastArgs& args);
}

}  // namespace kv
