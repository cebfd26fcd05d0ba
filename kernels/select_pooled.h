#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// As select_top, where the KV heads of a sequence share one budget: those of one layer (Ada-KV) or of several (LU-KV,
// global retention). First every row keeps its own: the protected entries, and its best up to `least`. Then the highest
// scores of the sequence stay, whichever row they are in, until counts[sequence] entries are kept in all.
// Total order (design.md, ties): score, then `ties` (higher first), then newer position, lower head, lower layer.
// A NaN score is an internal error, and so is a count smaller than what the rows keep as their own.
// counts[sequence] >= Σ length keeps all. −0 and +0 are equal scores.
struct SelectPooledArgs {
  struct Layer {
    PagedView cache;                 // equally many rows in every layer
    Slots<const float> scores;       // slots of protected entries are not read
    Slots<const float> ties;         // null in all layers or in none
    const int32_t* least = nullptr;  // [rows], how many entries a row keeps at least; null = 0
    Slots<uint8_t> keep;             // written for slots [0, length)
    int32_t* kept = nullptr;         // [rows], written: how many stay
  };
  const Layer* layers = nullptr;  // [layer_count], in the host's memory
  int64_t layer_count = 0;
  const int32_t* counts = nullptr;  // [sequences], over all layers and heads
  int32_t sinks = 0;
  int32_t recent = 0;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip, alike for the rows of a sequence; null = all
};

namespace cpu {
void select_pooled(const SelectPooledArgs& args);
}
namespace cuda {
void select_pooled(const SelectPooledArgs& args);
}

}  // namespace kv
