#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// The mean over all heads of a layer of what each has for the same token, which the heads of a ragged cache hold in
// different slots:
//   output[row, slot] = (Σ over the rows r of the row's sequence that hold positions[slot], and over g, of
//                        input[r, g, its slot in r]) / (kv_heads · group)
// for slots [0, length). A row that no longer holds the token counts as 0: its queries pay it no attention. Summed by
// ascending row, then g: rows that hold the same tokens get the same bits. `output` may not alias `input`.
struct LayerMeanArgs {
  PagedView cache;
  Slots<const float> input;  // rows · group of them
  int group = 1;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all. Rows of one sequence are due together
  Slots<float> output;
};

namespace cpu {
void layer_mean(const LayerMeanArgs& args);
}
namespace cuda {
void layer_mean(const LayerMeanArgs& args);
}

}  // namespace kv
