#pragma once

#include <cstdint>

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// What entries are still worth to the next H = horizon tokens, each having kept β of it a token (003, Sec. 4.2):
//   scores[row, slot] = log Σ_{h = 1..H} β^{a + h − 1},  a = tokens_seen − 1 − position + age_offset
//                     = a · log β + log(1 − β^H) − log(1 − β),  log β = columns[row, slot, column], at most 0
// β = 1 gives log H, and so does a log β below the normal range. H = 1 is TRIM-KV's a · log β. age_offset 1 is the
// paper's t − i + 1; 0 and 2 are those of TRIM-KV's text and code. Rows that are not due stay untouched. All in f32,
// the differences from 1 as expm1. With H > 1 scores lie near log H, where f32 has steps of up to 5e-7: entries whose
// a · log β differ by less tie.
struct RetentionScoresArgs {
  PagedView cache;
  int column = 0;
  const int32_t* tokens_seen = nullptr;  // [sequences], of which a row is sequence · kv_heads + head
  int horizon = 1;
  int age_offset = 1;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all
  Slots<float> scores;
};

namespace cpu {
void retention_scores(const RetentionScoresArgs& args);
}
namespace cuda {
void retention_scores(const RetentionScoresArgs& args);
}

}  // namespace kv
