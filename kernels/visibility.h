#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// scores[row, slot] /= tokens_seen[sequence] − positions[slot], the number of queries that have seen the entry (its own
// among them), for slots [0, length). Requires every position < tokens_seen of its sequence.
struct VisibilityArgs {
  PagedView cache;
  const int32_t* tokens_seen = nullptr;  // [sequences]
  const uint8_t* rows_due = nullptr;     // [rows], 0 = skip; null = all
  Slots<float> scores;
};

namespace cpu {
void visibility(const VisibilityArgs& args);
}
namespace cuda {
void visibility(const VisibilityArgs& args);
}

}  // namespace kv
